#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/memory.h"
#include "kernels/base/thread_pool.h"

namespace lockstep {

// Brings any number of bytes from a device to the host's ordinary memory, by way of pinned memory
// of a set size: to pin as much as there is to bring takes longer than to bring it. Threads empty
// one half while the device fills the other. For one thread.
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
  // Copies in the order of the device's stream for digests, and returns when all is there.
  void run(std::span<const Part> parts, ThreadPool& pool);

 private:
  Device device_;
  Tensor halves_[2];
};

}  // namespace lockstep
