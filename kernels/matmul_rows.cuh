#pragma once

#include "kernels/device.cuh"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace lockstep {

// sums[w][t] += weight[w] . x[t] over the elements that this lane takes of elements [0, k): vectors
// of kVector from `first` on, `stride` apart. Each weight is read once for all of x and each x once
// for all weights; the order of a sum depends on k, first and stride alone.
template <typename T, int kWeights, int kRows, int kVector>
__device__ void dot_rows(float (&sums)[kWeights][kRows], const T* const (&weight)[kWeights],
                         const T* const (&x)[kRows], int64_t k, int64_t first, int64_t stride) {
  struct alignas(sizeof(T) * kVector) Some {
    T e[kVector];
  };
  constexpr int kAhead = kWeights == 1 ? 4 : 2;  // reads of a row under way before one is used
  const auto add = [&](const Some(&w)[kWeights], int64_t i) {
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      const Some v = *reinterpret_cast<const Some*>(x[t] + i);
#pragma unroll
      for (int c = 0; c < kVector; ++c)
#pragma unroll
        for (int r = 0; r < kWeights; ++r)
          sums[r][t] = fmaf(widen(w[r].e[c]), widen(v.e[c]), sums[r][t]);
    }
  };
  const auto read = [&](Some(&w)[kWeights], int64_t i) {
#pragma unroll
    for (int r = 0; r < kWeights; ++r) w[r] = *reinterpret_cast<const Some*>(weight[r] + i);
  };
  int64_t i = first;
  for (; i + (kAhead - 1) * stride < k; i += kAhead * stride) {
    Some w[kAhead][kWeights];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) read(w[a], i + a * stride);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) add(w[a], i + a * stride);
  }
  for (; i < k; i += stride) {
    Some w[kWeights];
    read(w, i);
    add(w, i);
  }
}

// matmul's own kernel, for arguments that were checked: right for any number of tokens, and the
// quickest for few, because it reads the weights once for every four of them. The sum of an
// element depends on its row of x and its row of weight alone, not on the other tokens.
void matmul_rows_cuda(const OpContext& context, const TensorView& out, const TensorView& x,
                      const TensorView& weight, const TensorView& bias);

}  // namespace lockstep
