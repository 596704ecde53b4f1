// The left column is the model, the right column is what can be seen.
#include "src/model/qwen.h"

#include <cmath>
#include <tuple>

#include "src/model/show_cache.h"

namespace lockstep {
namespace {

TensorView flat(const TensorView& heads) {  // [tokens, heads, dim] -> [tokens, heads * dim]
  return heads.reshaped({heads.rows(), heads.row_size()});
}

// A point by name; one that is not in the table does not compile.
struct Name {
  consteval Name(const char* name) : point(lockstep::point(name)) {}
  const Point& point;
};

// One pass through the model: what every op of it needs.
class QwenPass {
 public:
  QwenPass(const Model& model, const Batch& batch, Activations& activations, Probe& probe)
      : model_(model),
        config_(model.config()),
        ops_(model.ops()),
        batch_(batch),
        probe_(probe),
        a_(activations) {}

  Forward run(const std::vector<KvCache>& caches);

 private:
  void attention(const LayerWeights& w, const KvCache& cache);
  void mlp(const LayerWeights& w);
  void experts(const LayerWeights& w);

  void show_kv(const KvCache& cache) { show_cache(model_, batch_, cache, layer_, probe_); }
  OpContext at(Name name) const { return model_.context(name.point, layer_); }
  void show(Name name, const TensorView& tensor) { probe_(name.point, layer_, tensor); }
  void show_last(Name name, const TensorView& tensor) { probe_.logits(name.point, tensor); }

  const Model& model_;
  const ModelConfig& config_;
  const Ops& ops_;
  const Batch& batch_;
  Probe& probe_;
  Activations& a_;
  int layer_ = -1;
};

// clang-format off
void QwenPass::attention(const LayerWeights& w, const KvCache& cache) {
  const auto eps = static_cast<float>(config_.norm_eps);
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config_.head_dim)));
  const int64_t window = config_.window[static_cast<size_t>(layer_)];
  const Ops& ops = ops_;
  Activations& a = a_;
  const TensorView stream = a.next_half();
  TensorView q = a.q, k = a.k;

  ops.rms_norm(at("attn.norm"), a.norm, stream, w.attn_norm, eps);    show("attn.norm", a.norm);
  ops.matmul(at("attn.q"), flat(a.q), a.norm, w.q, w.q_bias);         show("attn.q", a.q);
  ops.matmul(at("attn.k"), flat(a.k), a.norm, w.k, w.k_bias);         show("attn.k", a.k);
  ops.matmul(at("attn.v"), flat(a.v), a.norm, w.v, w.v_bias);         show("attn.v", a.v);
  if (config_.qk_norm) {
    ops.rms_norm(at("attn.q_norm"), a.q_norm, a.q, w.q_norm, eps);    show("attn.q_norm", a.q_norm);
    ops.rms_norm(at("attn.k_norm"), a.k_norm, a.k, w.k_norm, eps);    show("attn.k_norm", a.k_norm);
    q = a.q_norm, k = a.k_norm;
  }
  const auto& [positions, cos, sin] = std::tie(batch_.positions, batch_.cos, batch_.sin);
  ops.rope(at("attn.q_rope"), a.q_rope, q, cos, sin, positions);      show("attn.q_rope", a.q_rope);
  ops.rope(at("attn.k_rope"), a.k_rope, k, cos, sin, positions);      show("attn.k_rope", a.k_rope);
  ops.kv_write(at("attn.kv"), cache, a.k_rope, a.v, batch_.slots);    show_kv(cache);
  ops.paged_attention(at("attn.out"), a.attention, a.q_rope, cache,
                       batch_.attention(), scale, window);            show("attn.out", a.attention);
  ops.matmul(at("attn.o"), a.branch, flat(a.attention), w.o, w.o_bias);  show("attn.o", a.branch);
  ops.add(at("attn.residual"), a.stream, stream, a.branch);        show("attn.residual", a.stream);
}

void QwenPass::mlp(const LayerWeights& w) {
  const auto eps = static_cast<float>(config_.norm_eps);
  const Ops& ops = ops_;
  Activations& a = a_;
  const TensorView stream = a.next_half();

  ops.rms_norm(at("mlp.norm"), a.norm, stream, w.mlp_norm, eps);      show("mlp.norm", a.norm);
  if (config_.experts.in(layer_)) {
    experts(w);
  } else {
    ops.matmul(at("mlp.gate"), a.gate, a.norm, w.gate, {});           show("mlp.gate", a.gate);
    ops.matmul(at("mlp.up"), a.up, a.norm, w.up, {});                 show("mlp.up", a.up);
    ops.silu_mul(at("mlp.act"), a.act, a.gate, a.up);                 show("mlp.act", a.act);
    ops.matmul(at("mlp.down"), a.branch, a.act, w.down, {});          show("mlp.down", a.branch);
  }
  ops.add(at("mlp.residual"), a.stream, stream, a.branch);         show("mlp.residual", a.stream);
}

void QwenPass::experts(const LayerWeights& w) {
  const bool normalised = config_.experts.normalised;
  const Ops& ops = ops_;
  Activations& a = a_;
  const auto linear = [&](Name name, TensorView out, TensorView x, const auto& weights) {
    ops.expert_matmul(at(name), out, x, a.experts, weights);  show(name, out);
  };

  ops.matmul(at("mlp.router"), a.router, a.norm, w.router, {});     show("mlp.router", a.router);
  ops.top_k(at("mlp.experts"), a.experts, a.router);                show("mlp.experts", a.experts);
  ops.softmax_of(at("mlp.weights"), a.weights, a.router, a.experts,
                 normalised);                                       show("mlp.weights", a.weights);
  linear("mlp.expert_gate", a.expert_gate, a.norm, w.expert_gate);
  linear("mlp.expert_up", a.expert_up, a.norm, w.expert_up);
  ops.silu_mul(at("mlp.expert_act"), a.expert_act, a.expert_gate,
               a.expert_up);                                   show("mlp.expert_act", a.expert_act);
  linear("mlp.expert_down", a.expert_down, a.expert_act, w.expert_down);
  ops.weighted_sum(at("mlp.combine"), a.branch, a.expert_down,
                   a.weights);                                      show("mlp.combine", a.branch);
}

Forward QwenPass::run(const std::vector<KvCache>& caches) {
  const Weights& w = model_.weights();
  const auto eps = static_cast<float>(config_.norm_eps);
  const Ops& ops = ops_;
  Activations& a = a_;

  ops.gather_rows(at("embed"), a.stream, batch_.tokens, w.embed);     show("embed", a.stream);
  for (size_t i = 0; i < w.layers.size(); ++i) {
    layer_ = static_cast<int>(i);
    attention(w.layers[i], caches[i]);
    mlp(w.layers[i]);
  }
  layer_ = -1;
  const TensorView stream = a.next_half();
  ops.rms_norm(at("final.norm"), a.norm, stream, w.final_norm, eps);    show("final.norm", a.norm);
  if (a.last.rows() == 0) return {a.logits, a.token};
  ops.gather_rows(at("logits"), a.last, batch_.logit_rows, a.norm);
  ops.matmul(at("logits"), a.logits, a.last, w.lm_head, {});          show_last("logits", a.logits);
  ops.argmax(at("token"), a.token, a.logits);                         show_last("token", a.token);
  return {a.logits, a.token};
}
// clang-format on

}  // namespace

Forward qwen_forward(const Model& model, const Batch& batch, const std::vector<KvCache>& caches,
                     Activations& activations, Probe& probe) {
  return QwenPass(model, batch, activations, probe).run(caches);
}

}  // namespace lockstep
