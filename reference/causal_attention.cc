#include "reference/causal_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <optional>

namespace lockstep {
namespace {

// The keys that each query sees; none when LibTorch's own causal mask, which starts at the first
// key, says the same.
std::optional<at::Tensor> mask_of(int64_t queries, int64_t keys, int64_t window,
                                  const c10::Device& device) {
  if (queries == keys && window == 0) return {};
  const at::Tensor key = at::arange(keys, device);
  const at::Tensor query = at::arange(keys - queries, keys, device).unsqueeze(1);
  const at::Tensor seen = key <= query;
  return window == 0 ? seen : seen & (key > query - window);
}

}  // namespace

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            int64_t window) {
  const auto by_head = [](const at::Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
  const std::optional<at::Tensor> mask = mask_of(q.size(0), k.size(0), window, q.device());
  const at::Tensor y = at::scaled_dot_product_attention(
      by_head(q), by_head(k), by_head(v), mask, /*dropout_p=*/0.0, /*is_causal=*/!mask,
      /*scale=*/std::nullopt, /*enable_gqa=*/true);
  return y.squeeze(0).transpose(0, 1);
}

}  // namespace lockstep
