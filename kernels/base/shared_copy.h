#pragma once

#include <cstdint>
#include <memory>

#include "kernels/base/thread_pool.h"

namespace lockstep {

// Copies of host memory, large ones by several threads, since one alone fills fresh memory more
// slowly than a device does. For one thread at a time, which owns it.
class SharedCopy {
 public:
  // most_threads: that copy; 0: one a core. None is made before there is something worth sharing.
  explicit SharedCopy(int most_threads) : most_threads_(most_threads) {}
  void copy(void* to, const void* from, int64_t bytes);

 private:
  int most_threads_;
  std::unique_ptr<ThreadPool> threads_;
};

}  // namespace lockstep
