// The left column is the model, the right column is what can be seen.
#include "src/model/qwen.h"

#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

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
        // Who changes what is shown must be asked before the next piece is computed.
        fused_(probe.writes() ? FusedOps{} : model.fused()),
        batch_(batch),
        probe_(probe),
        a_(activations) {}

  Forward run(const std::vector<KvCache>& caches);

 private:
  void add_and_norm(Name residual, Name norm, int norm_layer, const TensorView& weight,
                    bool left_to_products);
  const AddNorm* made() const { return left_.has_value() ? &left_->made : nullptr; }
  void show_made();
  void attention(const LayerWeights& w, const KvCache& cache);
  void project(const LayerWeights& w);
  void pass_heads(const LayerWeights& w, const KvCache& cache);
  void pass_heads_at_once(const LayerWeights& w, const KvCache& cache);
  void mlp(const LayerWeights& w);
  void experts(const LayerWeights& w);

  void show_angles(Name name, const TensorView& rows, const TensorView& table);
  void show_kv(const KvCache& cache) { show_cache(model_, batch_, cache, layer_, probe_); }
  OpContext at(Name name) const { return model_.context(name.point, layer_); }
  void show(Name name, const TensorView& tensor) { probe_(name.point, layer_, tensor); }
  // What a fused op is to show of its inside: nothing that nobody wants.
  TensorView tap(Name name, const TensorView& tensor) const {
    return probe_.wants(name.point, layer_) ? tensor : TensorView{};
  }
  void show_last(Name name, const TensorView& tensor) { probe_.logits(name.point, tensor); }

  const Model& model_;
  const ModelConfig& config_;
  const Ops& ops_;
  const FusedOps fused_;
  const Batch& batch_;
  Probe& probe_;
  Activations& a_;
  int layer_ = -1;
  TensorView stream_;  // as the half of a layer that is computed found it
  // What add_and_norm left to the products that come next, and shows once they have made it.
  struct Left {
    AddNorm made;
    const Point& residual;
    const Point& norm;
    int residual_layer;
  };
  std::optional<Left> left_;
};

// clang-format off
// The end of a branch and the begin of the next one, which may be another layer's.
void QwenPass::add_and_norm(Name residual, Name norm, int norm_layer, const TensorView& weight,
                            bool left_to_products) {
  const auto eps = static_cast<float>(config_.norm_eps);
  Activations& a = a_;

  const TensorView before = stream_, branch = a.branch;
  const OpContext sum = at(residual);

  if (fused_.add_rms_norm) {
    stream_ = a.next_half();
    const AddNorm made = {.sum = stream_, .a = before, .b = branch, .weight = weight, .eps = eps};
    if (left_to_products) {
      left_.emplace(Left{.made = made, .residual = residual.point, .norm = norm.point,
                         .residual_layer = std::exchange(layer_, norm_layer)});
      return;
    }
    fused_.add_rms_norm(sum, a.norm, made);                           show(residual, stream_);
    layer_ = norm_layer;
  } else {
    ops_.add(sum, a.stream, before, branch);                          show(residual, a.stream);
    layer_ = norm_layer;
    stream_ = a.next_half();
    ops_.rms_norm(at(norm), a.norm, stream_, weight, eps);
  }
                                                                      show(norm, a.norm);
}

void QwenPass::show_made() {
  if (!left_.has_value()) return;
  probe_(left_->residual, left_->residual_layer, stream_);
  probe_(left_->norm, layer_, a_.norm);
  left_.reset();
}

void QwenPass::attention(const LayerWeights& w, const KvCache& cache) {
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config_.head_dim)));
  const int64_t window = config_.window[static_cast<size_t>(layer_)];
  const Ops& ops = ops_;
  Activations& a = a_;

  project(w);
  if (fused_.heads) pass_heads_at_once(w, cache); else pass_heads(w, cache);
  ops.paged_attention(at("attn.out"), a.attention, a.q_rope, cache,
                       batch_.attention(), scale, window);            show("attn.out", a.attention);
  ops.matmul(at("attn.o"), a.branch, flat(a.attention), w.o, w.o_bias);  show("attn.o", a.branch);
}

void QwenPass::project(const LayerWeights& w) {
  const Ops& ops = ops_;
  Activations& a = a_;

  if (fused_.matmuls) {
    const Linear all[] = {{flat(a.q), w.q, w.q_bias}, {flat(a.k), w.k, w.k_bias},
                          {flat(a.v), w.v, w.v_bias}};
    fused_.matmuls(at("attn.q"), all, a.norm, made());                show_made();
  } else {
    ops.matmul(at("attn.q"), flat(a.q), a.norm, w.q, w.q_bias);
    ops.matmul(at("attn.k"), flat(a.k), a.norm, w.k, w.k_bias);
    ops.matmul(at("attn.v"), flat(a.v), a.norm, w.v, w.v_bias);
  }
  show("attn.q", a.q);
  show("attn.k", a.k);
  show("attn.v", a.v);
}

void QwenPass::pass_heads(const LayerWeights& w, const KvCache& cache) {
  const auto eps = static_cast<float>(config_.norm_eps);
  const Ops& ops = ops_;
  Activations& a = a_;
  TensorView q = a.q, k = a.k;

  if (config_.qk_norm) {
    ops.rms_norm(at("attn.q_norm"), a.q_norm, a.q, w.q_norm, eps);    show("attn.q_norm", a.q_norm);
    ops.rms_norm(at("attn.k_norm"), a.k_norm, a.k, w.k_norm, eps);    show("attn.k_norm", a.k_norm);
    q = a.q_norm, k = a.k_norm;
  }
  const auto& [positions, cos, sin] = std::tie(batch_.positions, batch_.cos, batch_.sin);
  ops.rope(at("attn.q_rope"), a.q_rope, q, cos, sin, positions);      show("attn.q_rope", a.q_rope);
  ops.rope(at("attn.k_rope"), a.k_rope, k, cos, sin, positions);      show("attn.k_rope", a.k_rope);
  ops.kv_write(at("attn.kv"), cache, a.k_rope, a.v, batch_.slots);    show_kv(cache);
}

void QwenPass::pass_heads_at_once(const LayerWeights& w, const KvCache& cache) {
  Activations& a = a_;

  fused_.heads(at("attn.kv"), {.q = a.q, .k = a.k, .v = a.v,
                               .q_weight = w.q_norm, .k_weight = w.k_norm,
                               .eps = static_cast<float>(config_.norm_eps),
                               .cos = batch_.cos, .sin = batch_.sin,
                               .positions = batch_.positions, .slots = batch_.slots,
                               .q_rope = a.q_rope, .cache = cache,
                               .q_norm = tap("attn.q_norm", a.q_norm),
                               .k_norm = tap("attn.k_norm", a.k_norm),
                               .k_rope = tap("attn.k_rope", a.k_rope)});
  if (config_.qk_norm) {
    show("attn.q_norm", a.q_norm);
    show("attn.k_norm", a.k_norm);
  }
  show("attn.q_rope", a.q_rope);
  show("attn.k_rope", a.k_rope);
  show_kv(cache);
}

void QwenPass::mlp(const LayerWeights& w) {
  const Ops& ops = ops_;
  Activations& a = a_;

  if (config_.experts.in(layer_)) return experts(w);
  if (fused_.gated) {
    fused_.gated(at("mlp.act"), a.act, a.norm, w.gate, w.up, tap("mlp.gate", a.gate),
                 tap("mlp.up", a.up), made());
                                                                      show_made();
                                                                      show("mlp.gate", a.gate);
                                                                      show("mlp.up", a.up);
  } else {
    ops.matmul(at("mlp.gate"), a.gate, a.norm, w.gate, {});           show("mlp.gate", a.gate);
    ops.matmul(at("mlp.up"), a.up, a.norm, w.up, {});                 show("mlp.up", a.up);
    ops.silu_mul(at("mlp.act"), a.act, a.gate, a.up);
  }
                                                                      show("mlp.act", a.act);
  ops.matmul(at("mlp.down"), a.branch, a.act, w.down, {});            show("mlp.down", a.branch);
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

// The rows of a rotary table that the pass reads. RoPE reads them where they are: who does not look
// does not pay for them.
void QwenPass::show_angles(Name name, const TensorView& rows, const TensorView& table) {
  if (!probe_.wants(name.point, layer_)) return;
  ops_.gather_rows(at(name), rows, batch_.positions, table);          show(name, rows);
}

Forward QwenPass::run(const std::vector<KvCache>& caches) {
  const Weights& w = model_.weights();
  const auto eps = static_cast<float>(config_.norm_eps);
  const Ops& ops = ops_;
  Activations& a = a_;

  ops.gather_rows(at("embed"), a.stream, batch_.tokens, w.embed);     show("embed", a.stream);
  show_angles("rope.cos", a.rope_cos, batch_.cos);
  show_angles("rope.sin", a.rope_sin, batch_.sin);
  layer_ = 0;
  stream_ = a.next_half();
  ops.rms_norm(at("attn.norm"), a.norm, stream_, w.layers[0].attn_norm, eps);
                                                                      show("attn.norm", a.norm);
  for (size_t i = 0; i < w.layers.size(); ++i) {
    attention(w.layers[i], caches[i]);
    const bool dense = !config_.experts.in(layer_);
    add_and_norm("attn.residual", "mlp.norm", layer_, w.layers[i].mlp_norm,
                 dense && fused_.gated);
    mlp(w.layers[i]);
    if (i + 1 < w.layers.size())
      add_and_norm("mlp.residual", "attn.norm", layer_ + 1, w.layers[i + 1].attn_norm,
                   fused_.matmuls != nullptr);
    else
      add_and_norm("mlp.residual", "final.norm", -1, w.final_norm, false);
  }
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
