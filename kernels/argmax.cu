#include "kernels/argmax.h"
#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"

namespace lockstep {
namespace {

constexpr int kThreads = 1024;

// One block a row.
template <typename T, int kSize>
__global__ void first_of_largest(int32_t* out, const T* logits, int64_t vocab) {
  struct alignas(sizeof(T) * kSize) Some {
    T e[kSize];
  };
  const T* row = logits + static_cast<int64_t>(blockIdx.x) * vocab;
  Place best = {-INFINITY, INT32_MAX};  // which every number of the row stands before
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < vocab / kSize; i += kThreads) {
    const Some some = reinterpret_cast<const Some*>(row)[i];
    for (int c = 0; c < kSize; ++c) {
      const Place place = {widen(some.e[c]), i * kSize + c};
      if (before(place, best)) best = place;
    }
  }
  __shared__ Place warps[kThreads / kWarp];
  best = warp_first(best);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = best;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  best = warp_first(warps[threadIdx.x]);
  if (threadIdx.x == 0) out[blockIdx.x] = static_cast<int32_t>(best.index);
}

}  // namespace

void argmax_cuda(const OpContext& context, TensorView out, TensorView logits) {
  check_argmax(out, logits, Device::cuda);
  if (out.rows() == 0) return;
  const int64_t vocab = logits.shape[1];
  const bool wide = aligned_16(vocab * size_of(logits.dtype), logits.data);
  dispatch_cuda(logits.dtype, [&]<typename T>(T*) {
    const auto kernel = wide ? first_of_largest<T, Vector<T>::kSize> : first_of_largest<T, 1>;
    kernel<<<static_cast<unsigned>(out.rows()), kThreads, 0, context.stream>>>(
        out.as<int32_t>(), logits.as<const T>(), vocab);
  });
  cuda_check(cudaGetLastError(), "the launch of argmax");
}

}  // namespace lockstep
