#include "src/judge/place_pools.h"

namespace lockstep {

void PlacePools::add(const Key& key, std::vector<Meter::Row> rows, size_t count,
                     std::shared_ptr<const DistantRows> elsewhere) {
  const bool beside = elsewhere != nullptr;
  auto work = [this, &pool = pools_[key], count, rows = std::move(rows),
               elsewhere = std::move(elsewhere)]() mutable {
    pool.add_whole(std::span(rows).first(count), elsewhere.get());
    elsewhere.reset();
    give_back(std::move(rows));
  };
  if (!beside) {
    wait();
    return work();
  }
  // The places of a layer, which follow each other, are of different points, and so each thread has
  // some of them.
  std::unique_ptr<Background>& thread = threads_[key.first.first % kThreads];
  if (!thread) thread = std::make_unique<Background>();
  thread->begin([this, work = std::move(work)]() mutable {
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  });
}

void PlacePools::give_back(std::vector<Meter::Row> rows) {
  const std::lock_guard lock(mutex_);
  spare_.push_back(std::move(rows));
}

std::vector<Meter::Row> PlacePools::room() {
  const std::lock_guard lock(mutex_);
  if (spare_.empty()) return {};
  std::vector<Meter::Row> rows = std::move(spare_.back());
  spare_.pop_back();
  return rows;
}

void PlacePools::let_end() const {
  for (const std::unique_ptr<Background>& thread : threads_)
    if (thread) thread->let_end();
}

void PlacePools::wait() const {
  let_end();
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace lockstep
