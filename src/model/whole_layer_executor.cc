// The model calls a layer verb by verb; all but one of them wait for that one.
#include "src/model/whole_layer_executor.h"

#include <cmath>

#include "kernels/base/check.h"

namespace lockstep {

void WholeLayerExecutor::norm(int layer, const TensorView&) {
  layer_ = layer;
  stream_ = a_.next_half();
}

void WholeLayerExecutor::qk_norm_rope_kv_write(const LayerWeights& w, const KvCache& cache) {
  check(!config_.experts.in(layer_),
        "decoder_layer of --ops computes layers without experts, found layer {} with them: leave "
        "it out of the library, so that its other ops are called",
        layer_);
  model_.fused().decoder_layer(at("mlp.residual"),
                               {.x = stream_,
                                .attn_norm = w.attn_norm,
                                .q = w.q,
                                .k = w.k,
                                .v = w.v,
                                .q_bias = w.q_bias,
                                .k_bias = w.k_bias,
                                .v_bias = w.v_bias,
                                .q_norm = w.q_norm,
                                .k_norm = w.k_norm,
                                .o = w.o,
                                .o_bias = w.o_bias,
                                .mlp_norm = w.mlp_norm,
                                .gate = w.gate,
                                .up = w.up,
                                .down = w.down,
                                .eps = eps_,
                                .cos = batch_.cos,
                                .sin = batch_.sin,
                                .positions = batch_.positions,
                                .slots = batch_.slots,
                                .batch = batch_.attention(),
                                .scale = static_cast<float>(1 / std::sqrt(config_.head_dim)),
                                .window = config_.window[layer_],
                                .out = a_.stream,
                                .cache = cache,
                                .k_rope = tap("attn.k_rope", a_.k_rope),
                                .v_kept = tap("attn.v", a_.v)});
  show("attn.v", a_.v);
  show("attn.k_rope", a_.k_rope);
  show_kv(cache);
}

// The sum is in the layer, and so is the norm that the next one begins with.
void WholeLayerExecutor::add_norm(PointName residual, PointName norm, int norm_layer,
                                  const TensorView& weight) {
  if (residual.point != point("mlp.residual")) return;
  show(residual, a_.stream);
  WholeLayerExecutor::norm(norm_layer, weight);
  if (norm_layer >= 0) return;
  ops_.rms_norm(at(norm), a_.norm, stream_, weight, eps_);
  show(norm, a_.norm);
}

}  // namespace lockstep
