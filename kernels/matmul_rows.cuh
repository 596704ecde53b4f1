#pragma once

#include "kernels/device.cuh"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace lockstep {

// sums[t] += weight . x[t] over the elements that this lane takes of elements [0, k): vectors of
// kVector from `first` on, `stride` apart. The weight is read once for all of x; the order of a sum
// depends on k, first and stride alone.
template <typename T, int kRows, int kVector>
__device__ void dot_rows(float (&sums)[kRows], const T* weight, const T* const (&x)[kRows],
                         int64_t k, int64_t first, int64_t stride) {
  struct alignas(sizeof(T) * kVector) Some {
    T e[kVector];
  };
  constexpr int kAhead = 4;  // reads under way before the first is used
  const auto add = [&](const Some& w, int64_t i) {
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      const Some v = *reinterpret_cast<const Some*>(x[t] + i);
#pragma unroll
      for (int c = 0; c < kVector; ++c) sums[t] = fmaf(widen(w.e[c]), widen(v.e[c]), sums[t]);
    }
  };
  int64_t i = first;
  for (; i + (kAhead - 1) * stride < k; i += kAhead * stride) {
    Some w[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) w[a] = *reinterpret_cast<const Some*>(weight + i + a * stride);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) add(w[a], i + a * stride);
  }
  for (; i < k; i += stride) add(*reinterpret_cast<const Some*>(weight + i), i);
}

// matmul's own kernel, for arguments that were checked: right for any number of tokens, and the
// quickest for few, because it reads the weights once for every eight of them. The sum of an
// element depends on its row of x and its row of weight alone, not on the other tokens.
void matmul_rows_cuda(const OpContext& context, const TensorView& out, const TensorView& x,
                      const TensorView& weight, const TensorView& bias);

}  // namespace lockstep
