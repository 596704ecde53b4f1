// One loop at a time is cut into about four pieces a thread, which all threads take in turn, the
// caller among them. A worker that finds nothing spins for as long as the ops of one token are
// apart and then sleeps on a condition. Which thread takes which piece is chance, so a body gives
// the same result however its range is split.
#include "kernels/base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

constexpr int64_t kPiecesPerThread = 4;  // so that a thread that was kept waiting can be helped
// The ops of one token follow each other within this time, and waking a thread takes about as long.
constexpr std::chrono::microseconds kSpin{50};
// The pool whose loop this thread is inside of: a loop within that loop runs on the thread itself.
thread_local const void* inside = nullptr;

// Waits actively until ready(), but not longer than kSpin: whoever has to wait on then sleeps.
// An op follows the one before it at once, and waking takes longer than most ops.
template <typename Ready>
void spin_until(Ready ready) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  while (!ready() && std::chrono::steady_clock::now() < end)
    for (int i = 0; i < 8 && !ready(); ++i) __builtin_ia32_pause();
}

}  // namespace

struct ThreadPool::State {
  std::mutex one_loop;  // held by the caller for the length of its loop
  std::mutex mutex;     // guards all below
  std::condition_variable work, done;
  std::vector<std::thread> workers;
  const std::function<void(int64_t, int64_t)>* body = nullptr;
  int64_t count = 0, piece = 0, next = 0;
  std::atomic<int> running = 0;    // pieces in hand; written under the lock
  std::atomic<int64_t> loops = 0;  // begun, and one more at the end; likewise
  std::exception_ptr trouble;
  bool stop = false;

  // Takes pieces until none is left. Called with the lock held.
  void take_pieces(std::unique_lock<std::mutex>& lock) {
    const void* outer = std::exchange(inside, this);
    while (next < count) {
      const int64_t begin = next;
      next = std::min(count, begin + piece);
      const int64_t end = next;
      ++running;
      // The lock orders everything but the bodies: what a piece wrote is seen by whoever takes the
      // lock after it.
      lock.unlock();
      std::exception_ptr thrown;
      try {
        (*body)(begin, end);
      } catch (...) {
        thrown = std::current_exception();
      }
      lock.lock();
      --running;
      if (thrown) {
        if (!trouble) trouble = thrown;
        next = count;  // what was not begun need not be
      }
    }
    inside = outer;
  }

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      const auto wanted = [&] { return stop || next < count; };
      if (!wanted()) {
        const int64_t seen = loops;
        lock.unlock();
        // Without the lock, on an atomic alone: a spinning worker must not hold up the caller.
        spin_until([&] { return loops != seen; });
        lock.lock();
      }
      work.wait(lock, wanted);
      if (stop) return;
      take_pieces(lock);
      if (running == 0) done.notify_one();
    }
  }

  void join() {
    {
      const std::scoped_lock lock(mutex);
      stop = true;
      ++loops;
    }
    work.notify_all();
    for (std::thread& worker : workers) worker.join();
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  check(threads >= 1, "a pool has at least 1 thread, found {}: use --threads 1 or more", threads);
  try {
    for (int i = 1; i < threads; ++i)
      state_->workers.emplace_back([state = state_.get()] { state->serve(); });
  } catch (const std::bad_alloc&) {
    state_->join();
    throw;
  } catch (const std::system_error& error) {
    const size_t started = state_->workers.size() + 1;
    state_->join();
    fail("the system gave only {1} of {0} threads ({2}): use --threads {3}", threads, started,
         error.what(), started);
  }
}

ThreadPool::~ThreadPool() { state_->join(); }

int ThreadPool::size() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::run(int64_t count, int64_t grain,
                     const std::function<void(int64_t begin, int64_t end)>& body) {
  grain = std::max<int64_t>(grain, 1);
  if (count <= 0) return;
  // A loop inside of a loop of this pool would wait for itself.
  if (count <= grain || size() == 1 || inside == state_.get()) return body(0, count);
  State& s = *state_;
  const std::scoped_lock loop(s.one_loop);
  std::unique_lock lock(s.mutex);
  // Whole grains: kernels that work on tiles then have one odd tile at most.
  const int64_t grains = (count + grain - 1) / grain, shares = size() * kPiecesPerThread;
  s.body = &body;
  s.count = count;
  s.piece = (grains + shares - 1) / shares * grain;
  s.next = 0;
  s.trouble = nullptr;
  ++s.loops;
  const int64_t helpers = std::min<int64_t>(size(), (count + s.piece - 1) / s.piece) - 1;
  for (int64_t i = 0; i < helpers; ++i) s.work.notify_one();
  // The caller works too; helpers that wake too late find nothing left.
  s.take_pieces(lock);
  lock.unlock();
  spin_until([&] { return s.running == 0; });
  lock.lock();
  s.done.wait(lock, [&] { return s.running == 0; });
  // A worker that wakes later must not take pieces of a body that is gone.
  s.count = 0;
  s.next = 0;
  if (s.trouble) std::rethrow_exception(std::exchange(s.trouble, nullptr));
}

// The system reads a file for each answer.
int machine_threads() {
  static const int threads = std::max<int>(1, std::thread::hardware_concurrency());
  return threads;
}

void parallel_for(ThreadPool* pool, int64_t count, int64_t grain,
                  const std::function<void(int64_t begin, int64_t end)>& body) {
  if (pool != nullptr)
    pool->run(count, grain, body);
  else if (count > 0)
    body(0, count);
}

}  // namespace lockstep
