#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/memory.h"
#include "kernels/base/thread_pool.h"

namespace lockstep {

// Brings any number of bytes from a device to the host's ordinary memory, by way of pinned memory
// of a set size, however much there is to bring. Threads empty one half while the device fills the
// other. For one thread.
class Download {
 public:
  static constexpr int64_t kHalf = int64_t{32} << 20;  // bytes that are pinned, twice

  struct Part {
    char* to;
    const char* from;  // on the device
    int64_t bytes;
  };

  explicit Download(Device device);
  Device device() const { return device_; }
  // Copies what is there already, by the device's stream for downloads, and returns when all is
  // here. A pass that is computed meanwhile does not wait for it, nor it for that.
  void run(std::span<const Part> parts, ThreadPool& pool);

 private:
  Device device_;
  Tensor halves_[2];
};

}  // namespace lockstep
