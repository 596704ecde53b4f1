// x is widened to fp32 once, up to 64 tokens at a time, and each thread takes some rows of the
// weight through all of them. A tile is 4 rows by 4 tokens of sums, each of which runs over k in
// the same order whatever the tile's size, so that no bit depends on how many tokens there are. A
// single token takes its rows one by one: then the time is that of reading the weight, and one long
// stream is read faster than four.
#include "kernels/cpu/matmul_rows.h"

#include <algorithm>
#include <vector>

#include "kernels/base/arguments.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/simd.h"

namespace lockstep {
namespace {

constexpr int64_t kTokens = 64;           // whose fp32 rows stay in cache while the weights pass by
constexpr int64_t kGrainBytes = 1 << 16;  // of weights: less is not worth waking a thread
constexpr int64_t kAheadBytes = 8192;     // from a product to the weight that is asked for

template <typename T>
struct MatmulKernel {
  T* out;
  const float* x;  // [tokens, stride], zeros behind k
  const T* weight;
  const T* bias;  // or null
  int64_t tokens, n, k, stride;
  int64_t begin, end;  // rows of weight

  template <int N>
  [[gnu::always_inline]] void operator()() const {
    int64_t row = begin;
    // One token takes the time of reading the weights: one long stream, as they lie in memory, is
    // read faster than the short ones of several rows.
    if (tokens == 1)
      for (; row < end; ++row) tile<N, 1, 1>(row, 0);
    for (; row + 4 <= end; row += 4) all_tokens<N, 4>(row);
    for (; row < end; ++row) all_tokens<N, 1>(row);
  }

  template <int N, int Rows>
  [[gnu::always_inline]] void all_tokens(int64_t row) const {
    int64_t t = 0;
    for (; t + 4 <= tokens; t += 4) tile<N, Rows, 4>(row, t);
    if (tokens - t == 3) tile<N, Rows, 3>(row, t);
    if (tokens - t == 2) tile<N, Rows, 2>(row, t);
    if (tokens - t == 1) tile<N, Rows, 1>(row, t);
  }

  // Rows x Tokens sums, each a chain of its own over k.
  template <int N, int Rows, int Tokens>
  [[gnu::always_inline]] void tile(int64_t row, int64_t token) const {
    simd::F<N> sums[Rows][Tokens];
    for (auto& row_sums : sums)
      for (simd::F<N>& sum : row_sums) sum = simd::F<N>{};
    const T* w = weight + row * k;
    const float* in = x + token * stride;
    int64_t i = 0;
    for (; i + N <= k; i += N) {
      simd::F<N> weights[Rows];
      for (int r = 0; r < Rows; ++r) {
        // Prefetches the next tile of several rows, whose streams are too short for the CPU's own
        // prefetcher.
        constexpr int64_t kAhead = kAheadBytes / sizeof(T);
        __builtin_prefetch(w + (Rows == 1 ? kAhead : (r + Rows) * k) + i, 0, Rows == 1 ? 3 : 2);
        weights[r] = simd::load<N>(w + r * k + i);
      }
      for (int t = 0; t < Tokens; ++t) {
        const simd::F<N> v = simd::load<N>(in + t * stride + i);
        for (int r = 0; r < Rows; ++r) sums[r][t] += weights[r] * v;
      }
    }
    if (i < k) {
      for (int r = 0; r < Rows; ++r) {
        const simd::F<N> rest = simd::load<N>(w + r * k + i, k - i);
        for (int t = 0; t < Tokens; ++t) sums[r][t] += rest * simd::load<N>(in + t * stride + i);
      }
    }
    for (int r = 0; r < Rows; ++r) {
      const float b = bias == nullptr ? 0.0f : to_float(bias[row + r]);
      for (int t = 0; t < Tokens; ++t)
        out[(token + t) * n + row + r] = from_float<T>(simd::sum<N>(sums[r][t]) + b);
    }
  }
};

// x as fp32, padded with zeros to whole vectors: widened once, read for every row of the weight.
template <typename T>
struct WidenKernel {
  float* to;
  const T* from;
  int64_t rows, k, stride;

  template <int N>
  [[gnu::always_inline]] void operator()() const {
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < stride; i += N)
        simd::store<N>(to + row * stride + i,
                       simd::load<N>(from + row * k + i, std::max<int64_t>(k - i, 0)));
  }
};

}  // namespace

// Tokens come in blocks, so that the widened x stays in the cache.
void matmul_rows(const OpContext& context, TensorView out, TensorView x, TensorView weight,
                 TensorView bias) {
  const int64_t n = weight.rows(), k = weight.shape[1];
  const int64_t stride = (k + simd::kWidest - 1) / simd::kWidest * simd::kWidest;
  const int64_t grain = (kGrainBytes / (weight.row_size() * size_of(x.dtype) + 1) / 8 + 1) * 8;
  std::vector<float> wide(std::min(kTokens, x.rows()) * stride);
  dispatch("matmul", x.dtype, [&]<typename T>(T*) {
    for (int64_t first = 0; first < x.rows(); first += kTokens) {
      const int64_t tokens = std::min(kTokens, x.rows() - first);
      on_best_isa(WidenKernel<T>{wide.data(), x.as<const T>() + first * k, tokens, k, stride});
      parallel_for(context.threads, n, grain, [&](int64_t begin, int64_t end) {
        on_best_isa(MatmulKernel<T>{out.as<T>() + first * n, wide.data(), weight.as<const T>(),
                                    bias.as<const T>(), tokens, n, k, stride, begin, end});
      });
    }
  });
}

}  // namespace lockstep
