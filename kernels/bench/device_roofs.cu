#include "kernels/bench/device_roofs.h"
#include "kernels/cuda/device.cuh"

namespace lockstep {
namespace {

// Blocks walk along the memory together. A thread asks for kLoads vectors before it waits.
template <int kLoads, int kThreads>
__global__ void __launch_bounds__(kThreads)
    add_up(const uint4* data, int64_t vectors, uint32_t* sum) {
  constexpr int64_t kTile = kLoads * kThreads;  // of a block
  uint32_t own = 0;
  for (int64_t first = blockIdx.x * kTile; first < vectors; first += gridDim.x * kTile) {
    uint4 read[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t at = first + i * kThreads + threadIdx.x;
      read[i] = at < vectors ? data[at] : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) own += read[i].x + read[i].y + read[i].z + read[i].w;
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2) own += __shfl_xor_sync(~0u, own, offset);
  if (threadIdx.x % kWarp == 0) atomicAdd(sum, own);
}

template <int kLoads, int kThreads>
void read_by(int blocks_a_processor, const void* data, int64_t bytes, uint32_t* sum,
             CUstream_st* stream) {
  const int processors =
      number_of_device(cudaDevAttrMultiProcessorCount, "how many multiprocessors it has");
  const unsigned blocks = processors * blocks_a_processor;
  add_up<kLoads, kThreads>
      <<<blocks, kThreads, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16, sum);
  cuda_check(cudaGetLastError(), "to read its memory");
}

void read(int way, const void* data, int64_t bytes, uint32_t* sum, CUstream_st* stream) {
  check(way >= 0 && way < RoofKernels::kWays && bytes % 16 == 0,
        "a roof wants a way below {} and a multiple of 16 bytes to read, found {} and {}",
        RoofKernels::kWays, way, bytes);
  if (way == 0) read_by<4, 512>(4, data, bytes, sum, stream);
  if (way == 1) read_by<8, 256>(4, data, bytes, sum, stream);
  if (way == 2) read_by<8, 1024>(2, data, bytes, sum, stream);
}

__global__ void do_nothing() { pdl_launch_dependents_and_wait(); }

void nothing(CUstream_st* stream) {
  launch_pdl("a kernel that does nothing", stream, 1, kWarp, do_nothing);
}

}  // namespace

extern "C" const RoofKernels* lockstep_cuda_roofs() {
  static const RoofKernels kernels = {.read = read, .nothing = nothing};
  return &kernels;
}

}  // namespace lockstep
