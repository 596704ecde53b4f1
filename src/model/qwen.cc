// Qwen2, Qwen2.5, Qwen3 and Qwen3-MoE. reference/qwen.cc is the same figure, by another hand.
#include "src/model/qwen.h"

#include "src/model/layer_executor.h"

namespace lockstep {

Forward qwen_forward(const Model& model, const Batch& batch, const std::vector<KvCache>& caches,
                     Activations& activations, Probe& probe) {
  const auto pass = make_executor({model, batch, activations, probe});
  const Weights& weights = model.weights();
  const size_t layers = weights.layers.size();

  pass->embed(weights.embed);
  pass->norm(0, weights.layers[0].attn_norm);
  for (size_t i = 0; i < layers; ++i) {
    const LayerWeights& w = weights.layers[i];
    const int layer = static_cast<int>(i);

    pass->qkv(w);
    pass->qk_norm_rope_kv_write(w, caches[i]);
    pass->attend(caches[i]);
    pass->project(w);
    pass->add_norm("attn.residual", "mlp.norm", layer, w.mlp_norm);

    if (model.config().experts.in(layer)) {
      pass->experts(w);
    } else {
      pass->gate_up_silu(w);
      pass->down(w);
    }
    if (i + 1 < layers)
      pass->add_norm("mlp.residual", "attn.norm", layer + 1, weights.layers[i + 1].attn_norm);
    else
      pass->add_norm("mlp.residual", "final.norm", -1, weights.final_norm);
  }
  return pass->head(weights.lm_head);
}

}  // namespace lockstep
