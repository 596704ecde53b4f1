// Copies that are too small to be worth a way of their own: the driver makes each a piece of work
// that the next kernel waits for, some microseconds a piece. One launch makes several instead, and
// brings bytes of the host along as its arguments.
#include <algorithm>
#include <cstring>

#include "kernels/cuda/device_runtime.cuh"

namespace lockstep {
namespace {

constexpr int kThreads = 512;

struct Parts {
  CopyPart part[DeviceRuntime::kMostParts];
};

// Words where both ends have such addresses. Begins and strides count words, or bytes.
__device__ void copy_part(const CopyPart& part, int64_t begin, int64_t stride) {
  const auto to = reinterpret_cast<uintptr_t>(part.to);
  const auto from = reinterpret_cast<uintptr_t>(part.from);
  constexpr int64_t kWord = sizeof(uint4);
  const bool in_words = (to | from) % kWord == 0;
  const int64_t words = in_words ? part.bytes / kWord : 0;
  for (int64_t i = begin; i < words; i += stride)
    static_cast<uint4*>(part.to)[i] = static_cast<const uint4*>(part.from)[i];
  for (int64_t i = words * kWord + begin; i < part.bytes; i += stride)
    static_cast<char*>(part.to)[i] = static_cast<const char*>(part.from)[i];
}

__global__ void copy_parts(const __grid_constant__ Parts parts) {
  copy_part(parts.part[blockIdx.y], int64_t{blockIdx.x} * kThreads + threadIdx.x,
            int64_t{gridDim.x} * kThreads);
}

// The bytes that a launch brings along, as arguments, of which CUDA 12.1 and later take 32 KB.
template <int kMost>
struct Carried {
  uint4 words[kMost / sizeof(uint4)];
};

// One block, since the part may be of what the bytes fill.
template <int kMost>
__global__ void fill(char* to, const __grid_constant__ Carried<kMost> carried, int64_t bytes,
                     CopyPart then) {
  copy_part({to, &carried, bytes}, threadIdx.x, kThreads);
  __syncthreads();
  copy_part(then, threadIdx.x, kThreads);
}

template <int kMost>
void launch_fill(void* to, const void* from, int64_t bytes, const CopyPart& then,
                 CUstream_st* stream) {
  Carried<kMost> carried;
  std::memcpy(&carried, from, bytes);
  fill<kMost><<<1, kThreads, 0, stream>>>(static_cast<char*>(to), carried, bytes, then);
  cuda_check(cudaGetLastError(), "the launch that fills arguments");
}

}  // namespace

void copy_parts_on_device(std::span<const CopyPart> parts, CUstream_st* stream) {
  check(parts.size() <= DeviceRuntime::kMostParts,
        "{} copies of one launch are wanted, of {} at most", parts.size(),
        DeviceRuntime::kMostParts);
  Parts all;
  int64_t most = 0;
  for (size_t i = 0; i < parts.size(); ++i)
    all.part[i] = parts[i], most = std::max(most, parts[i].bytes);
  if (most == 0) return;
  const dim3 grid(blocks_for(most / int64_t{sizeof(uint4)} + 1, kThreads),
                  static_cast<unsigned>(parts.size()));
  copy_parts<<<grid, kThreads, 0, stream>>>(all);
  cuda_check(cudaGetLastError(), "the launch that copies");
}

void fill_on_device(void* to, const void* from, int64_t bytes, const CopyPart& then,
                    CUstream_st* stream) {
  constexpr int kFew = 4 << 10, kMany = 28 << 10;
  if (bytes <= kFew) return launch_fill<kFew>(to, from, bytes, then, stream);
  if (bytes <= kMany) return launch_fill<kMany>(to, from, bytes, then, stream);
  cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
  copy_parts_on_device({&then, 1}, stream);
}

}  // namespace lockstep
