// A tensor is told by the end of its name. What is named nowhere below is in every rank.
#include "src/ranks/shard_checkpoint.h"

#include <cstring>

namespace lockstep {
namespace {

TensorView rows(const TensorView& tensor, const Part& part, int64_t each = 1) {
  return tensor.slice(part.first * each, part.count * each);
}

}  // namespace

TensorView ShardCheckpoint::columns(const TensorView& tensor, const Part& part) {
  const int64_t size = size_of(tensor.dtype), all = tensor.shape[1] * size;
  Tensor& copy = copies_.emplace_back(Shape{tensor.rows(), part.count}, tensor.dtype);
  for (int64_t row = 0; row < tensor.rows(); ++row)
    std::memcpy(copy.as<char>() + row * part.count * size,
                tensor.as<const char>() + row * all + part.first * size, part.count * size);
  return copy;
}

TensorView ShardCheckpoint::part_of(const std::string& name, const TensorView& tensor,
                                    const RankPlan& plan) {
  const int64_t dim = plan.whole.head_dim;
  const auto is = [&](const char* end) { return name.ends_with(end); };
  const Part& inner = name.find(".experts.") == std::string::npos ? plan.inner : plan.expert_inner;
  if (is("embed_tokens.weight") || is("lm_head.weight")) return rows(tensor, plan.vocab);
  if (is("q_proj.weight") || is("q_proj.bias")) return rows(tensor, plan.heads, dim);
  if (is("k_proj.weight") || is("k_proj.bias") || is("v_proj.weight") || is("v_proj.bias"))
    return rows(tensor, plan.kv_heads, dim);
  if (is("o_proj.weight")) return columns(tensor, {plan.heads.first * dim, plan.heads.count * dim});
  if (is("gate_proj.weight") || is("up_proj.weight")) return rows(tensor, inner);
  if (is("down_proj.weight")) return columns(tensor, inner);
  return tensor;
}

ShardCheckpoint::ShardCheckpoint(const Checkpoint& whole, const RankPlan& plan) {
  std::map<std::string, TensorView> tensors;
  for (const std::string& name : whole.names())
    tensors[name] = part_of(name, whole.tensor(name), plan);
  checkpoint_ = whole.with(plan.local, std::move(tensors));
}

}  // namespace lockstep
