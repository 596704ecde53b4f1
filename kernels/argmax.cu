#include "kernels/argmax.h"
#include "kernels/base/memory.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"

namespace lockstep {
namespace {

constexpr int kThreads = 256;
constexpr int kMostSlices = 32;  // blocks that share a row

// The first of the block's places, for its first warp.
__device__ Place block_first(Place best) {
  __shared__ Place warps[kThreads / kWarp];
  best = warp_first(best);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = best;
  __syncthreads();
  return warp_first(warps[threadIdx.x % (kThreads / kWarp)]);
}

// One block a slice of a row (blockIdx.y).
template <typename T, int kSize>
__global__ void first_of_slice(Place* slices, const T* logits, int64_t vocab) {
  pdl_launch_dependents_and_wait();
  struct alignas(sizeof(T) * kSize) Some {
    T e[kSize];
  };
  const T* row = logits + int64_t{blockIdx.x} * vocab;
  Place best = {-INFINITY, INT32_MAX};  // which every number of the row stands before
  const int64_t first = int64_t{blockIdx.y} * kThreads + threadIdx.x;
#pragma unroll 2
  for (int64_t i = first; i < vocab / kSize; i += int64_t{gridDim.y} * kThreads) {
    const Some some = reinterpret_cast<const Some*>(row)[i];
    for (int c = 0; c < kSize; ++c) {
      const Place place = {widen(some.e[c]), i * kSize + c};
      if (before(place, best)) best = place;
    }
  }
  best = block_first(best);
  if (threadIdx.x == 0) slices[blockIdx.x * gridDim.y + blockIdx.y] = best;
}

// One warp a row, a lane a slice.
__global__ void first_of_row(int32_t* out, const Place* slices, int count) {
  pdl_launch_dependents_and_wait();
  static_assert(kMostSlices <= kWarp);
  const int slice = min(static_cast<int>(threadIdx.x), count - 1);
  const Place best = warp_first(slices[int64_t{blockIdx.x} * count + slice]);
  if (threadIdx.x == 0) out[blockIdx.x] = best.index;
}

}  // namespace

void argmax_cuda(const OpContext& context, TensorView out, TensorView logits) {
  check_argmax(out, logits, DeviceKind::cuda);
  if (out.rows() == 0) return;
  const int64_t vocab = logits.shape[1];
  const unsigned rows = out.rows();
  const unsigned count = std::clamp<int64_t>(vocab / (16 * kThreads), 1, kMostSlices);
  const Tensor slices({out.rows() * count * int64_t{sizeof(Place)}}, DType::u8, out.device);
  const bool wide = aligned_16(vocab * size_of(logits.dtype), logits.data);
  dispatch_cuda(logits.dtype, [&]<typename T>(T*) {
    const auto kernel = wide ? first_of_slice<T, Vector<T>::kSize> : first_of_slice<T, 1>;
    launch_pdl("argmax", context.stream, dim3(rows, count), kThreads, kernel, slices.as<Place>(),
               logits.as<const T>(), vocab);
  });
  launch_pdl("argmax", context.stream, rows, kWarp, first_of_row, out.as<int32_t>(),
             slices.as<Place>(), count);
}

}  // namespace lockstep
