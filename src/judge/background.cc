#include "src/judge/background.h"

#include <utility>

namespace lockstep {

void Background::begin(std::function<void()> work) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !work_; });
  work_ = std::move(work);
  changed_.notify_all();
}

void Background::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !work_; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Background::let_end() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !work_; });
  failure_ = nullptr;
}

Background& Backgrounds::idle() {
  for (std::unique_ptr<Background>& one : all_) {
    if (!one) one = std::make_unique<Background>();
    if (one->waited_for == 0) return *one;
  }
  return *all_.front();
}

// The work is taken away when it has ended, which is what its owner waits for.
void Background::serve(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return static_cast<bool>(work_); })) {
    lock.unlock();
    std::exception_ptr failure;
    try {
      work_();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (!failure_) failure_ = failure;
    work_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace lockstep
