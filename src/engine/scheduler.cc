// Two queues, both in the order in which requests came: those that run and those that wait. A step
// first serves the running ones from the oldest on, and takes pages from the newest when there are
// none; only a step that took none admits waiting ones. With a seed, chance shortens chunks, skips
// requests, preempts and delays: orders that a server has now and then, on purpose and again the
// same.
#include "src/engine/scheduler.h"

#include <algorithm>
#include <limits>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

// Keeps a queue in the order in which requests came.
template <typename Queue>
void insert_by_id(Queue& queue, Sequence* sequence) {
  queue.insert(std::ranges::upper_bound(queue, sequence->id, {}, &Sequence::id), sequence);
}

}  // namespace

Scheduler::Scheduler(PagePool& pool, const EngineOptions& options)
    : pool_(pool), options_(options), random_(options.random_schedule_seed) {}

void Scheduler::check_fits(const Sequence& sequence) const {
  const int64_t needed = pages_for(sequence.request.max_positions());
  check(needed <= pool_.pages(),
        "request {} needs {} pages of {} tokens for its {} tokens, but the pool has {}: raise "
        "--pages, shorten the prompt or lower --max-new",
        sequence.id, needed, options_.page_size, sequence.request.max_positions(), pool_.pages());
}

void Scheduler::add(Sequence& sequence) {
  check_fits(sequence);
  insert_by_id(waiting_, &sequence);
}

void Scheduler::fork(const Sequence& parent, Sequence& child) {
  check(std::ranges::count(running_, &parent) > 0,
        "request {} cannot be forked, because it is not running", parent.id);
  check_fits(child);
  child.tokens = parent.tokens;
  child.computed = parent.computed;
  child.pages = parent.pages;
  child.keys = parent.keys;
  child.starts_with_cached_prefix = true;
  for (int32_t page : child.pages) pool_.share(page);
  insert_by_id(running_, &child);
}

// How many tokens of the sequence the next pass takes, when it may take `left`.
int64_t Scheduler::wanted(const Sequence& sequence, int64_t left) {
  int64_t tokens = sequence.length() - sequence.computed;
  if (options_.chunk > 0) tokens = std::min(tokens, options_.chunk);
  if (tokens > 1 && by_chance(50))
    tokens = 1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(tokens));
  return std::clamp<int64_t>(tokens, 0, left);
}

// Pages that the sequence needs and does not hold to compute that many more tokens. A page that it
// shares and is about to write counts too: it needs a copy of its own.
int64_t Scheduler::pages_missing(const Sequence& sequence, int64_t tokens) const {
  const auto held = std::ssize(sequence.pages);
  const int64_t written = sequence.computed / options_.page_size;
  const bool copies = written < held && pool_.holders(sequence.pages[written]) > 1;
  return pages_for(sequence.computed + tokens) - held + copies;
}

// Only the page that is written next can be a shared one that is not full; those before it are full
// and are only read.
void Scheduler::give_pages(Sequence& sequence, int64_t tokens, Plan& plan) {
  const size_t written = sequence.computed / options_.page_size;
  if (written < sequence.pages.size() && pool_.holders(sequence.pages[written]) > 1) {
    const int32_t own = pool_.take();
    plan.copies.push_back({sequence.pages[written], own});
    pool_.give_back(std::exchange(sequence.pages[written], own));
  }
  while (std::ssize(sequence.pages) < pages_for(sequence.computed + tokens)) {
    sequence.pages.push_back(pool_.take());
    plan.fresh.push_back(sequence.pages.back());
  }
}

void Scheduler::release(Sequence& sequence) {
  for (int32_t page : sequence.pages) pool_.give_back(page);
  sequence.pages.clear();
  sequence.keys.clear();
}

void Scheduler::preempt(Sequence& sequence, Plan& plan) {
  const bool swap = options_.preempt == Preempt::swap && sequence.computed > 0;
  if (swap) plan.out.push_back({&sequence, sequence.pages});
  sequence.swapped = swap;
  release(sequence);
  if (!swap) sequence.computed = 0;
  std::erase(running_, &sequence);
  insert_by_id(waiting_, &sequence);
  ++plan.preempted;
}

// Takes pages from the latest running requests until `sequence` can have what it needs. False: it
// was the latest itself, and lost its own. The earliest never is: alone, it fits.
bool Scheduler::make_room(Sequence& sequence, int64_t pages, Plan& plan) {
  while (pool_.available() < pages) {
    Sequence* latest = running_.back();
    check(latest != running_.front(), "request {} runs alone and lacks {} pages of a pool of {}",
          sequence.id, pages - pool_.available(), pool_.pages());
    preempt(*latest, plan);
    if (latest == &sequence) return false;
  }
  return true;
}

void Scheduler::serve_running(int64_t& left, Plan& plan) {
  for (size_t i = 0; i < running_.size(); ++i) {
    // Forks run from the start, and may be more than a batch takes: the later ones wait.
    if (options_.max_batch > 0 && std::ssize(plan.chunks) >= options_.max_batch) return;
    Sequence& sequence = *running_[i];
    // The oldest is neither preempted nor passed over by chance here.
    if (i > 0 && by_chance(10)) {
      preempt(sequence, plan);
      --i;
      continue;
    }
    const int64_t tokens = wanted(sequence, left);
    if (tokens == 0 || (i > 0 && by_chance(20))) continue;
    if (!make_room(sequence, pages_missing(sequence, tokens), plan)) return;
    give_pages(sequence, tokens, plan);
    left -= tokens;
    plan.chunks.push_back({&sequence, tokens});
  }
}

// Starts with the pages that already hold the beginning of its tokens. The last token is always
// computed: its logits are wanted.
void Scheduler::reuse_prefix(Sequence& sequence) {
  const int64_t full = (sequence.length() - 1) / options_.page_size;
  uint64_t parent = 0;
  for (int64_t i = 0; i < full; ++i) {
    const std::span tokens(sequence.tokens.data() + i * options_.page_size, options_.page_size);
    const auto page = pool_.find(parent, tokens);
    if (!page) break;
    parent = PagePool::prefix_key(parent, tokens);
    sequence.pages.push_back(*page);
    sequence.keys.push_back(parent);
    sequence.computed += options_.page_size;
  }
}

bool Scheduler::admit_one(Sequence& sequence, int64_t& left, Plan& plan) {
  // A request that was swapped out has its own numbers, and gets these back.
  if (options_.prefix_cache && !sequence.swapped) reuse_prefix(sequence);
  const int64_t tokens = wanted(sequence, left);
  // Room for all it has so far, not only for the first chunk: else it would soon be thrown out
  // again.
  const int64_t needed = pages_for(sequence.length()) - std::ssize(sequence.pages);
  // The prefix that it found is let go again; it may find it, or more, next time.
  if (tokens == 0 || pool_.available() < needed) {
    release(sequence);
    if (!sequence.swapped) sequence.computed = 0;
    return false;
  }
  if (sequence.swapped) {
    Plan::Swap back{&sequence, {}};
    while (std::ssize(sequence.pages) < pages_for(sequence.computed))
      sequence.pages.push_back(pool_.take());
    back.pages = sequence.pages;
    plan.in.push_back(std::move(back));
    sequence.swapped = false;
  } else {
    sequence.starts_with_cached_prefix = sequence.computed > 0;
  }
  give_pages(sequence, tokens, plan);
  left -= tokens;
  plan.chunks.push_back({&sequence, tokens});
  return true;
}

void Scheduler::admit(int64_t step, int64_t& left, Plan& plan) {
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    if (options_.max_batch > 0 && std::ssize(running_) >= options_.max_batch) return;
    Sequence& sequence = **next;
    if (sequence.request.arrival > step) {
      ++next;
      continue;
    }
    if (!running_.empty() && by_chance(20)) return;
    if (!admit_one(sequence, left, plan)) return;  // no overtaking
    next = waiting_.erase(next);
    insert_by_id(running_, &sequence);
  }
}

int64_t Scheduler::next_busy(int64_t step) const {
  if (!running_.empty() || waiting_.empty()) return step;
  const auto arrival = [](const Sequence* sequence) { return sequence->request.arrival; };
  return std::max(step, arrival(*std::ranges::min_element(waiting_, {}, arrival)));
}

Plan Scheduler::next(int64_t step) {
  Plan plan;
  int64_t left = options_.max_batched_tokens > 0 ? options_.max_batched_tokens
                                                 : std::numeric_limits<int64_t>::max();
  serve_running(left, plan);
  // A request that was just preempted must not come straight back in.
  if (plan.preempted == 0) admit(step, left, plan);
  return plan;
}

bool Scheduler::goes_on(const std::vector<Plan::Chunk>& chunks) const {
  int64_t pages = 0;
  for (const Plan::Chunk& chunk : chunks) pages += pages_missing(*chunk.sequence, 1);
  return options_.random_schedule_seed == 0 && waiting_.empty() &&
         std::ranges::equal(running_, chunks, {}, {}, &Plan::Chunk::sequence) &&
         pages <= pool_.free_pages();
}

// In the order in which they lay: the last one that was taken goes back first.
void Scheduler::take_back(const std::vector<Plan::Chunk>& chunks) {
  for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk) {
    Sequence& sequence = *chunk->sequence;
    for (; std::ssize(sequence.pages) > pages_for(sequence.computed); sequence.pages.pop_back())
      pool_.give_back(sequence.pages.back());
  }
}

void Scheduler::computed(Sequence& sequence) {
  if (!options_.prefix_cache) return;
  for (auto i = std::ssize(sequence.keys); i < sequence.computed / options_.page_size; ++i) {
    const uint64_t parent = i == 0 ? 0 : sequence.keys.back();
    const std::span tokens(sequence.tokens.data() + i * options_.page_size, options_.page_size);
    pool_.publish(sequence.pages[i], parent, tokens);
    sequence.keys.push_back(PagePool::prefix_key(parent, tokens));
  }
}

void Scheduler::end(Sequence& sequence) {
  sequence.finished = true;
  release(sequence);
  std::erase(running_, &sequence);
}

}  // namespace lockstep
