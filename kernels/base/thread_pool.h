#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace lockstep {

// A pool of worker threads, owned by one thread, which runs one parallel loop at a time. Between
// loops they spin for 50 us at most and then sleep: threads that spin for long collapse when
// another process shares the cores. Loops of several threads follow each other; one that begins
// inside of another runs on its own thread.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // including the caller; 1 makes no worker
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  // Runs body(begin, end) over pieces of [0, count) of at least `grain` items, on all threads, and
  // returns when all are done. Rethrows the first exception a piece threw. `body` is called by
  // several threads at once, on pieces that do not overlap, and is borrowed until this returns.
  // Results must not depend on how the range is cut.
  void run(int64_t count, int64_t grain,
           const std::function<void(int64_t begin, int64_t end)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// How many threads the cores of this machine run at once; 1 where it does not say.
int machine_threads();

// pool->run, or the whole range at once on the calling thread when there is no pool.
void parallel_for(ThreadPool* pool, int64_t count, int64_t grain,
                  const std::function<void(int64_t begin, int64_t end)>& body);

}  // namespace lockstep
