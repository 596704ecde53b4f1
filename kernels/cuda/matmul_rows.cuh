#pragma once

#include <cstring>
#include <span>
#include <type_traits>

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"
#include "kernels/cuda/device.cuh"
#include "kernels/fused.h"

namespace lockstep {

// Rows of weights by a warp, which has the first kAhead vectors a lane of each under way as soon as
// this is made. The order of a sum depends on k and kVector alone.
template <typename T, int kWeights, int kVector, int kAhead>
class WeightRows {
 public:
  __device__ WeightRows(const T* const (&rows)[kWeights], int64_t k) : k_(k) {
#pragma unroll
    for (int r = 0; r < kWeights; ++r) rows_[r] = rows[r];
    read(first());
  }

  // sums[w][t] = row w . x[t]. Each weight is read once for all of x and each x once for all
  // weights.
  template <int kTokens>
  __device__ void multiply(float (&sums)[kWeights][kTokens], const T* const (&x)[kTokens]) {
    float halves[2][kWeights][kTokens] = {};  // even and odd elements: shorter chains of sums
    for (int64_t i = first(); i < k_;) {
#pragma unroll
      for (int a = 0; a < kAhead; ++a) add(halves, x, a, i + a * kStride);
      i += kAhead * kStride;
      if (i < k_) read(i);
    }
#pragma unroll
    for (int w = 0; w < kWeights; ++w)
#pragma unroll
      for (int t = 0; t < kTokens; ++t) sums[w][t] = __fadd_rn(halves[0][w][t], halves[1][w][t]);
  }

 private:
  static constexpr int64_t kStride = int64_t{kWarp} * kVector;
  // kVector elements, in words: as elements each would take a register of its own.
  using Words = std::conditional_t<kVector == 1, T, uint4>;
  struct alignas(sizeof(T) * kVector) Some {
    T e[kVector];
  };
  __device__ static int64_t first() { return int64_t{threadIdx.x % kWarp} * kVector; }
  __device__ Words words_of(const T* row, int64_t i) const {
    Words words{};
    if (i < k_) words = *reinterpret_cast<const Words*>(row + i);
    return words;
  }
  __device__ static Some some_of(const Words& words) {
    Some some;
    memcpy(&some, &words, sizeof(some));
    return some;
  }

  __device__ void read(int64_t i) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a)
#pragma unroll
      for (int r = 0; r < kWeights; ++r) held_[a][r] = words_of(rows_[r], i + a * kStride);
  }
  template <int kTokens>
  __device__ void add(float (&halves)[2][kWeights][kTokens], const T* const (&x)[kTokens], int a,
                      int64_t i) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const Some v = some_of(words_of(x[t], i));
#pragma unroll
      for (int c = 0; c < kVector; ++c)
#pragma unroll
        for (int r = 0; r < kWeights; ++r)
          halves[c % 2][r][t] =
              __fmaf_rn(widen(some_of(held_[a][r]).e[c]), widen(v.e[c]), halves[c % 2][r][t]);
    }
  }

  int64_t k_;
  const T* rows_[kWeights];
  Words held_[kAhead][kWeights];
};

// More are quicker with the library, measured on an H200, and two to eight of 16 bits on tensor
// cores (matmul_eight.cuh).
constexpr int64_t kFewTokens = 4;
constexpr int kMostTogether = 3;  // products of one launch: those of q, k and v

// Whether all of these products can be of one launch.
bool together(std::span<const Linear> all, const TensorView& x);

// Whether such a launch can also make x: of one token and short rows. Each of its blocks makes all
// of it, so there may be no more of them than are at work at once.
bool matmul_computes_norm(std::span<const Linear> all, bool gate_up_silu, const TensorView& x,
                          const AddNormInput& input);

// matmul's own kernel, for arguments that were checked: right for any number of tokens, and the
// quickest for one, and for few that do not fit tensor cores, because it reads the weights once for
// every four of them. The sum of an
// element depends on its row of x and its row of weight alone, not on the other tokens or on what
// else is of the launch: several products that are `together`. `input`, null or of products that
// make their own x, gives x the bits of add_rms_norm.
void matmul_rows_cuda(const OpContext& context, std::span<const Linear> all, const TensorView& x,
                      const AddNormInput* input);

// out = silu_mul(gate, up) of two products that are `together`, of kFewTokens tokens at most, whose
// out may be empty. The products have the bits that matmul_rows_cuda gives them.
void gate_up_silu_rows_cuda(const OpContext& context, const TensorView& out, const Linear& gate,
                            const Linear& up, const TensorView& x, const AddNormInput* input);

}  // namespace lockstep
