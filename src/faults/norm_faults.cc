#include <cmath>
#include <cstring>

#include "src/faults/seeds.h"

namespace lockstep {
namespace {

using Norm = decltype(Ops::rms_norm);

bool is_qk_norm(const OpContext& context) {
  return context.point == "attn.q_norm" || context.point == "attn.k_norm";
}

// Norms every `width` elements by their own mean square.
void norm_in_blocks(TensorView out, const TensorView& x, const TensorView& weight, float eps,
                    int64_t width) {
  for (int64_t first = 0; first < x.count(); first += width) {
    float sum = 0;
    for (int64_t i = first; i < first + width; ++i) sum += get(x, i) * get(x, i);
    const float scale = 1 / std::sqrt(sum / static_cast<float>(width) + eps);
    for (int64_t i = first; i < first + width; ++i)
      put(out, i, get(x, i) * scale * get(weight, i % weight.count()));
  }
}

}  // namespace

void seed_qk_norm_missing(const Seams& seams, const FaultRequest& request) {
  seams.ops.rms_norm = [inner = seams.ops.rms_norm, request](const OpContext& context,
                                                             TensorView out, TensorView x,
                                                             TensorView weight, float eps) {
    if (!hits(request, context) || !is_qk_norm(context)) return inner(context, out, x, weight, eps);
    std::memcpy(out.data, x.data, static_cast<size_t>(x.bytes()));
  };
}

void seed_qk_norm_over_16_wide_blocks(const Seams& seams, const FaultRequest& request) {
  seams.ops.rms_norm = [inner = seams.ops.rms_norm, request](const OpContext& context,
                                                             TensorView out, TensorView x,
                                                             TensorView weight, float eps) {
    if (!hits(request, context) || !is_qk_norm(context)) return inner(context, out, x, weight, eps);
    norm_in_blocks(out, x, weight, eps, 16);
  };
}

void seed_rms_norm_eps(const Seams& seams, const FaultRequest& request) {
  seams.ops.rms_norm = [inner = seams.ops.rms_norm, request](const OpContext& context,
                                                             TensorView out, TensorView x,
                                                             TensorView weight, float eps) {
    const bool hit = hits(request, context) && context.point == "attn.norm";
    inner(context, out, x, weight, hit ? static_cast<float>(request.size) : eps);
  };
}

}  // namespace lockstep
