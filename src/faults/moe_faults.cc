#include "src/faults/seeds.h"

namespace lockstep {

void seed_moe_expert_order(const Seams& seams, const FaultRequest& request) {
  seams.ops.weighted_sum = [inner = seams.ops.weighted_sum, request](const OpContext& context,
                                                                     TensorView out, TensorView x,
                                                                     TensorView weights) {
    if (!hits(request, context)) return inner(context, out, x, weights);
    const int64_t k = weights.shape[1];
    const Tensor turned(weights.shape, weights.dtype);
    for (int64_t i = 0; i < weights.count(); ++i)
      put(turned, i, get(weights, i / k * k + (k - 1 - i % k)));
    inner(context, out, x, turned);
  };
}

void seed_moe_router_not_normalised(const Seams& seams, const FaultRequest& request) {
  seams.ops.routing_weights = [inner = seams.ops.routing_weights, request](
                                  const OpContext& context, TensorView out, TensorView logits,
                                  TensorView index, bool normalised) {
    inner(context, out, logits, index, normalised && !hits(request, context));
  };
}

}  // namespace lockstep
