#pragma once

#include <cstdint>

struct CUstream_st;

namespace lockstep {

// Work of the current CUDA device of the thread (that of the stream), whose time says what that
// device can do at most, from the library of CUDA ops. Throws Error when it cannot be launched.
struct RoofKernels {
  // In how many ways `read` can read: which one is the fastest differs between devices.
  static constexpr int kWays = 3;

  // Queues a kernel that reads `bytes` of the device's memory, a multiple of 16 at a multiple of
  // 16, and does nothing else but add their 32-bit words, modulo 2^32, to *sum, on the device too.
  void (*read)(int way, const void* data, int64_t bytes, uint32_t* sum,
               CUstream_st* stream) = nullptr;
  // Queues a kernel of one warp that does nothing. It may be set up while the one before it runs,
  // as most ops may.
  void (*nothing)(CUstream_st* stream) = nullptr;
};

// The table belongs to the library and lives as long.
extern "C" [[gnu::visibility("default")]] const RoofKernels* lockstep_cuda_roofs();

}  // namespace lockstep
