#include "reference/causal_mask.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

namespace lockstep {

at::Tensor mask_of(int64_t queries, int64_t keys, int64_t window, const c10::Device& device) {
  if (queries == keys && window == 0) return {};
  const at::Tensor key = at::arange(keys, device);
  const at::Tensor query = at::arange(keys - queries, keys, device).unsqueeze(1);
  const at::Tensor seen = key <= query;
  return window == 0 ? seen : seen & (key > query - window);
}

}  // namespace lockstep
