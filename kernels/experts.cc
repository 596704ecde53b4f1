// A mixture of experts on the CPU: rows are grouped by expert, and each expert's matrix is
// multiplied with all of its rows at once; weighted_sum adds a token's k results in the order of
// its choices, in fp32, and rounds once.
#include "kernels/experts.h"

#include <cstring>

#include "kernels/base/arguments.h"
#include "kernels/base/bad_index.h"
#include "kernels/base/memory.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/simd.h"
#include "kernels/matmul.h"

namespace lockstep {
namespace {

// The rows of `out` that each expert makes. All indices are looked at before anything is computed,
// so that a bad one leaves `out` as it was.
std::vector<std::vector<int64_t>> rows_by_expert(const TensorView& index, int64_t experts) {
  std::vector<std::vector<int64_t>> rows(experts);
  for (int64_t i = 0; i < index.count(); ++i) {
    const int32_t expert = index.as<const int32_t>()[i];
    if (expert < 0 || expert >= experts) refuse({BadIndex::Of::used_expert, experts, expert, i});
    rows[expert].push_back(i);
  }
  return rows;
}

// out[t] = sum_c weights[t, c] x[t, c], in the order of the choices, in fp32.
template <typename T>
struct WeightedSumKernel {
  T* out;
  const T* x;
  const T* weights;
  int64_t k, width, begin, end;  // tokens [begin, end)

  template <int N>
  [[gnu::always_inline]] void operator()() const {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t i = 0; i < width; i += N) {
        simd::F<N> sum = {};
        for (int64_t c = 0; c < k; ++c) {
          const simd::F<N> weight = simd::all<N>(to_float(weights[t * k + c]));
          sum += weight * simd::load<N>(x + (t * k + c) * width + i, width - i);
        }
        simd::store<N>(out + t * width + i, sum, width - i);
      }
  }
};

}  // namespace

// Rows are gathered by expert, multiplied together, and scattered back: each weight is read once a
// pass.
void expert_matmul(const OpContext& context, TensorView out, TensorView x, TensorView index,
                   const std::vector<TensorView>& weights) {
  check_expert_matmul(out, x, index, weights, DeviceKind::cpu);
  if (out.count() == 0) return;
  const int64_t n = out.shape[2], in = weights[0].shape[1], item = size_of(x.dtype);
  // Row i of out reads row i of x, or row i / k where x has one for all choices of a token.
  const int64_t shared = x.shape.rank() == 2 ? index.shape[1] : 1;
  const auto by_expert = rows_by_expert(index, std::ssize(weights));
  for (size_t e = 0; e < weights.size(); ++e) {
    const std::vector<int64_t>& rows = by_expert[e];
    if (rows.empty()) continue;
    const int64_t count = std::ssize(rows);
    // The numbers of rows differ, and with them matmul's path and bits: hence not batch-invariant.
    const Tensor from({count, in}, x.dtype), to({count, n}, x.dtype);
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(from.as<char>() + i * in * item,
                  x.as<const char>() + rows[i] / shared * in * item, in * item);
    matmul(context, to, from, weights[e], {});
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(out.as<char>() + rows[i] * n * item, to.as<const char>() + i * n * item,
                  n * item);
  }
}

void weighted_sum(const OpContext& context, TensorView out, TensorView x, TensorView weights) {
  check_weighted_sum(out, x, weights, DeviceKind::cpu);
  const int64_t tokens = x.rows(), k = x.shape[1], width = x.shape[2];
  dispatch("weighted_sum", x.dtype, [&]<typename T>(T*) {
    parallel_for(context.threads, tokens, 16384 / (k * width + 1) + 1,
                 [&](int64_t begin, int64_t end) {
                   on_best_isa(WeightedSumKernel<T>{out.as<T>(), x.as<const T>(),
                                                    weights.as<const T>(), k, width, begin, end});
                 });
  });
}

}  // namespace lockstep
