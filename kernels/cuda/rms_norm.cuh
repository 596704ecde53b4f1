// The arithmetic of rms_norm on the device, which it shares with the ops that contain it. Every
// product and sum is an intrinsic, because a compiler may contract them in one kernel and not in
// another.
#pragma once

#include "kernels/cuda/device.cuh"

namespace lockstep {

constexpr int kNormThreads = 256;    // of a block that has a row
constexpr int64_t kNarrowRow = 256;  // elements at most of a row that one warp has

// The scale of a row, from the sum of its squares.
__device__ inline float norm_scale(float squares, int64_t width, float eps) {
  const float mean = __fdiv_rn(squares, static_cast<float>(width));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

template <typename T>
__device__ T normalised(T x, float scale, T weight) {
  return narrow<T>(__fmul_rn(__fmul_rn(widen(x), scale), widen(weight)));
}

// A narrow row, by one warp: a lane has the elements lane, lane + 32, .. of it, kShare at most.
constexpr int kNarrowShare = kNarrowRow / kWarp;
template <typename T, int kShare = kNarrowShare>
struct NarrowRow {
  T e[kShare];

  // Reads `width` elements; those behind them become 0.
  __device__ void read(const T* row, int width) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int c = 0; c < kShare; ++c)
      e[c] = lane + c * kWarp < width ? row[lane + c * kWarp] : narrow<T>(0);
  }
  __device__ void write(T* row, int width) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int c = 0; c < kShare; ++c)
      if (lane + c * kWarp < width) row[lane + c * kWarp] = e[c];
  }
  __device__ void normalise(const NarrowRow& weight, int width, float eps) {
    float squares = 0;
#pragma unroll
    for (int c = 0; c < kShare; ++c) squares = __fmaf_rn(widen(e[c]), widen(e[c]), squares);
    const float scale = norm_scale(warp_sum(squares), width, eps);
#pragma unroll
    for (int c = 0; c < kShare; ++c) e[c] = normalised(e[c], scale, weight.e[c]);
  }
};

// The elements of a row that one instruction reads or writes.
template <typename T, int kVector>
struct alignas(sizeof(T) * kVector) Elements {
  T e[kVector];
};

// The elements of a + b, as add rounds them.
template <typename T, int kVector>
__device__ Elements<T, kVector> sum_of(const T* a, const T* b) {
  const auto x = *reinterpret_cast<const Elements<T, kVector>*>(a),
             y = *reinterpret_cast<const Elements<T, kVector>*>(b);
  Elements<T, kVector> sum;
#pragma unroll
  for (int c = 0; c < kVector; ++c) sum.e[c] = narrow<T>(__fadd_rn(widen(x.e[c]), widen(y.e[c])));
  return sum;
}

// A wider row, by a block of kNormThreads. `read` gives kVector elements from
// element i on; they then lie in `row` too. Where kHeld, a thread's first ones stay in registers,
// and its first weights are read before the kernel before is done.
template <typename T, int kVector, bool kHeld = true, typename Read>
__device__ void normalise_wide(T* out, const T* row, const T* weight, int64_t width, float eps,
                               Read read) {
  using Some = Elements<T, kVector>;
  constexpr int64_t kStride = int64_t{kNormThreads} * kVector;
  __shared__ float warps[kNormThreads / kWarp];
  const int64_t begin = int64_t{threadIdx.x} * kVector;
  const auto some_of = [](const T* from) { return *reinterpret_cast<const Some*>(from); };
  Some gain = {}, first = {};
  if (kHeld && begin < width) gain = some_of(weight + begin);
  // Weights are not what the kernel before writes.
  pdl_launch_dependents_and_wait();
  float squares = 0;
#pragma unroll 1
  for (int64_t i = begin; i < width; i += kStride) {
    Some some;
    read(i, some.e);
    if (kHeld && i == begin) first = some;
#pragma unroll
    for (int c = 0; c < kVector; ++c)
      squares = __fmaf_rn(widen(some.e[c]), widen(some.e[c]), squares);
  }
  squares = warp_sum(squares);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = squares;
  __syncthreads();
  float sum = 0;
  for (const float warp : warps) sum = __fadd_rn(sum, warp);
  const float scale = norm_scale(sum, width, eps);
#pragma unroll 1
  for (int64_t i = begin; i < width; i += kStride) {
    if (!kHeld || i != begin) first = some_of(row + i), gain = some_of(weight + i);
#pragma unroll
    for (int c = 0; c < kVector; ++c) first.e[c] = normalised(first.e[c], scale, gain.e[c]);
    *reinterpret_cast<Some*>(out + i) = first;
  }
}

}  // namespace lockstep
