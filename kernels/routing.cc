// The router's two ops. top_k sorts the logits of a token, largest first, of equal ones the smaller
// index, a NaN before all numbers, so that trouble is chosen and seen. routing_weights is the
// softmax over all experts, taken at the chosen ones and, for models that normalise, divided by
// their sum.
#include "kernels/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/base/arguments.h"
#include "kernels/base/bad_index.h"
#include "kernels/base/thread_pool.h"

namespace lockstep {
namespace {

constexpr int64_t kGrain = 4096;  // logits: fewer are not worth waking a thread

void check_routing(std::string_view op, const TensorView& logits, const TensorView& index,
                   std::string_view index_name, DeviceKind device) {
  check_storage(op, logits.dtype);
  check_rank(op, "logits", logits, 2);
  check_rank(op, index_name, index, 2);
  const int64_t tokens = logits.rows(), experts = logits.shape[1], k = index.shape[1];
  check(k >= 1 && k <= experts && experts <= INT32_MAX,
        "{} wants at least one choice and no more than there are logits, found {} of {}: correct "
        "the model's numbers of experts",
        op, k, experts);
  check_tensor(op, "logits", logits, logits.dtype, logits.shape, device);
  check_tensor(op, index_name, index, DType::i32, {tokens, k}, device);
}

// Whether logit a goes before logit b.
bool before(const std::vector<float>& logits, int32_t a, int32_t b) {
  const float x = logits[a], y = logits[b];
  if (std::isnan(x) != std::isnan(y)) return std::isnan(x);
  return x == y || std::isnan(x) ? a < b : x > y;
}

// e^(x - largest) of every logit. That of a NaN is NaN, and so is every sum it is in.
void exponentials(std::vector<float>& logits) {
  float largest = -INFINITY;
  for (const float x : logits) largest = x <= largest ? largest : x;
  for (float& x : logits) x = std::exp(x - largest);
}

template <typename T>
void widen_row(const T* from, std::vector<float>& to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = to_float(from[i]);
}

}  // namespace

void check_top_k(TensorView out, TensorView logits, DeviceKind device) {
  check_routing("top_k", logits, out, "out", device);
}

void check_routing_weights(TensorView out, TensorView logits, TensorView index, DeviceKind device) {
  check_routing("routing_weights", logits, index, "index", device);
  check_tensor("routing_weights", "out", out, logits.dtype, index.shape, device);
}

void top_k(const OpContext& context, TensorView out, TensorView logits) {
  check_top_k(out, logits, DeviceKind::cpu);
  const int64_t tokens = logits.rows(), experts = logits.shape[1], k = out.shape[1];
  dispatch("top_k", logits.dtype, [&]<typename T>(T*) {
    parallel_for(context.threads, tokens, kGrain / experts + 1, [&](int64_t begin, int64_t end) {
      std::vector<float> row(experts);
      std::vector<int32_t> order(row.size());
      for (int64_t t = begin; t < end; ++t) {
        widen_row(logits.as<const T>() + t * experts, row);
        std::iota(order.begin(), order.end(), 0);
        std::partial_sort(order.begin(), order.begin() + k, order.end(),
                          [&row](int32_t a, int32_t b) { return before(row, a, b); });
        std::copy_n(order.begin(), k, out.as<int32_t>() + t * k);
      }
    });
  });
}

void routing_weights(const OpContext& context, TensorView out, TensorView logits, TensorView index,
                     bool normalised) {
  check_routing_weights(out, logits, index, DeviceKind::cpu);
  const int64_t tokens = logits.rows(), experts = logits.shape[1], k = index.shape[1];
  const auto* which = index.as<const int32_t>();
  for (int64_t i = 0; i < index.count(); ++i)
    if (which[i] < 0 || which[i] >= experts)
      refuse({BadIndex::Of::routed_expert, experts, which[i], i});
  dispatch("routing_weights", logits.dtype, [&]<typename T>(T*) {
    parallel_for(context.threads, tokens, kGrain / experts + 1, [&](int64_t begin, int64_t end) {
      std::vector<float> row(experts);
      for (int64_t t = begin; t < end; ++t) {
        widen_row(logits.as<const T>() + t * experts, row);
        exponentials(row);
        float sum = 0;
        // softmax(x)[i] / sum of the chosen = e^x_i / sum of e^x over the chosen: the sum over all
        // cancels.
        if (normalised)
          for (int64_t c = 0; c < k; ++c) sum += row[which[t * k + c]];
        else
          for (const float x : row) sum += x;
        for (int64_t c = 0; c < k; ++c)
          out.as<T>()[t * k + c] = from_float<T>(row[which[t * k + c]] / sum);
      }
    });
  });
}

}  // namespace lockstep
