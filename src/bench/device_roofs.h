// The rates of a CUDA device's memory and launches, measured beside the figures.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/memory.h"
#include "src/bench/figures.h"

namespace lockstep {

// The roofs of a CUDA device that was opened, measured beside the figures that are held against
// them; kernels/bench/roofs.h has that of the CPU.
class DeviceRoofs {
 public:
  // Takes a buffer of 2 GiB of the device's memory, many times its cache, and samples once. Throws
  // Error when there is no room for it.
  explicit DeviceRoofs(Device device);

  Device device() const { return buffer_.view().device; }

  // Measures again; from here on `read` is the better of this time and the last. Throws Error when
  // what was read does not add up to what is there.
  void sample();
  // Bytes a second that the device reads of its memory: of the fastest of some ways to read.
  double read() const;

  // Those samples, and how long a kernel that does nothing takes within a graph, and bytes a second
  // of a copy to pinned memory of the host.
  std::vector<Figure> figures() const;

 private:
  Tensor buffer_;
  uint32_t truth_ = 0;  // the sum of its 32-bit words
  std::vector<double> read_;
};

}  // namespace lockstep
