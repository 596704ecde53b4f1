// Copies of whole rows, whatever their dtype.
#pragma once

#include "kernels/cuda/device.cuh"

namespace lockstep {

constexpr int kCopyThreads = 128;  // of a block that copies rows

// Copies one row by all threads of the block. A null `from` stands for a row that there is not: the
// copy is then NaN in every float dtype.
template <typename Unit>
__device__ void copy_row(Unit* to, const Unit* from, int64_t units) {
  for (int64_t i = threadIdx.x; i < units; i += kCopyThreads) {
    Unit unit;
    if (from == nullptr)
      memset(&unit, 0xff, sizeof(Unit));
    else
      unit = from[i];
    to[i] = unit;
  }
}

// Calls body with a null pointer of the widest type in which rows of that many bytes at those
// addresses can be copied: 16 bytes, or 2, of which every element consists.
template <typename Body, typename... Pointers>
void dispatch_copy(int64_t row_bytes, Body&& body, Pointers... pointers) {
  if (aligned_16(row_bytes, pointers...))
    body(static_cast<uint4*>(nullptr));
  else
    body(static_cast<uint16_t*>(nullptr));
}

}  // namespace lockstep
