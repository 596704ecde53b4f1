#include "src/engine/scheduler.h"

#include <algorithm>

#include "kernels/check.h"

namespace lockstep {

void Scheduler::add(Sequence& sequence) {
  const int64_t needed = pages_for(sequence.request.most_positions());
  check(needed <= pool_.pages(),
        "request {} needs {} pages of {} tokens for its {} tokens, but the pool has {}: raise "
        "--pages, shorten the prompt or lower --max-new",
        sequence.id, needed, options_.page_size, sequence.request.most_positions(), pool_.pages());
  waiting_.push_back(&sequence);
}

void Scheduler::admit() {
  while (!waiting_.empty()) {
    if (options_.max_batch > 0 && std::ssize(running_) >= options_.max_batch) return;
    Sequence* next = waiting_.front();
    const int64_t needed = pages_for(next->request.most_positions());
    if (!pool_.reserve(needed))
      return;  // no overtaking: the first in line gets the next free pages
    next->reserved = needed;
    running_.push_back(next);
    waiting_.pop_front();
  }
}

std::vector<Share> Scheduler::next(std::vector<int32_t>& fresh) {
  admit();
  fresh.clear();
  std::vector<Share> shares;
  for (Sequence* sequence : running_) {
    int64_t tokens = sequence->length() - sequence->computed;
    if (options_.chunk > 0) tokens = std::min(tokens, options_.chunk);
    const int64_t pages = pages_for(sequence->computed + tokens);
    while (std::ssize(sequence->pages) < pages) {
      sequence->pages.push_back(pool_.take());
      --sequence->reserved;
      fresh.push_back(sequence->pages.back());
    }
    shares.push_back({sequence, tokens});
  }
  return shares;
}

void Scheduler::end(Sequence& sequence) {
  sequence.finished = true;
  pool_.release(sequence.reserved);
  sequence.reserved = 0;
  pool_.give_back(sequence.pages);
  std::erase(running_, &sequence);
}

}  // namespace lockstep
