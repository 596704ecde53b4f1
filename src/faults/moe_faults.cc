// Bugs of a mixture of experts: the order in which results are added with their weights, and how
// the weights are made.
#include "src/faults/seeds.h"

namespace lockstep {
namespace {

void seed_moe_expert_order(const Seams& seams, const FaultRequest& request) {
  inject(seams, &Ops::weighted_sum, request,
         [](const auto& inner, const OpContext& context, TensorView out, TensorView x,
            TensorView weights) {
           const int64_t k = weights.shape[1];
           const Tensor turned(weights.shape, weights.dtype);
           for (int64_t i = 0; i < weights.count(); ++i)
             put(turned, i, get(weights, i / k * k + (k - 1 - i % k)));
           inner(context, out, x, turned);
         });
}

// Qwen's models differ in norm_topk_prob, and a loader that ignores it has the default.
void seed_moe_router_not_normalised(const Seams& seams, const FaultRequest& request) {
  inject(seams, &Ops::routing_weights, request,
         [](const auto& inner, const OpContext& context, TensorView out, TensorView logits,
            TensorView index, bool) { inner(context, out, logits, index, false); });
}

bool mixes_experts(const ModelConfig& c) {
  return !c.experts.layers.empty() && c.experts.chosen > 1;
}
bool normalises_experts(const ModelConfig& c) {
  return !c.experts.layers.empty() && c.experts.normalised && c.experts.chosen < c.experts.count;
}

constexpr Fault kMoeRows[] = {
    {"moe-expert-order",
     "mlp.combine",
     "the weights of a token's experts are applied in the opposite order",
     "a mixture of two experts or more",
     {},
     mixes_experts,
     seed_moe_expert_order},
    {"moe-router-not-normalised",
     "mlp.weights",
     "the weights of the chosen experts are not divided by their sum",
     "experts whose weights are normalised (norm_topk_prob)",
     {},
     normalises_experts,
     seed_moe_router_not_normalised},
};

}  // namespace

constinit const std::span<const Fault> kMoeFaults = kMoeRows;

}  // namespace lockstep
