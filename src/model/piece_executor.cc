// The left column is the model, the right column is what can be seen.
#include "src/model/piece_executor.h"

#include <cmath>
#include <tuple>

#include "src/model/show_cache.h"

namespace lockstep {
// clang-format off
void PieceExecutor::embed(const TensorView& table) {
  ops_.gather_rows(at("embed"), a_.stream, batch_.tokens, table);     show("embed", a_.stream);
  show_angles("rope.cos", a_.rope_cos, batch_.cos);
  show_angles("rope.sin", a_.rope_sin, batch_.sin);
}

// The rows of a rotary table that the pass reads. RoPE reads them where they are: who does not look
// does not pay for them.
void PieceExecutor::show_angles(PointName name, const TensorView& rows, const TensorView& table) {
  if (!probe_.wants(name.point, layer_)) return;
  ops_.gather_rows(at(name), rows, batch_.positions, table);          show(name, rows);
}

void PieceExecutor::norm(int layer, const TensorView& weight) {
  layer_ = layer;
  stream_ = a_.next_half();
  ops_.rms_norm(at("attn.norm"), a_.norm, stream_, weight, eps_);     show("attn.norm", a_.norm);
}

void PieceExecutor::qkv(const LayerWeights& w) {
  ops_.matmul(at("attn.q"), flat(a_.q), a_.norm, w.q, w.q_bias);      show("attn.q", a_.q);
  ops_.matmul(at("attn.k"), flat(a_.k), a_.norm, w.k, w.k_bias);      show("attn.k", a_.k);
  ops_.matmul(at("attn.v"), flat(a_.v), a_.norm, w.v, w.v_bias);      show("attn.v", a_.v);
}

void PieceExecutor::qk_norm_rope_kv_write(const LayerWeights& w, const KvCache& cache) {
  Activations& a = a_;
  TensorView q = a.q, k = a.k;

  if (config_.qk_norm) {
    ops_.rms_norm(at("attn.q_norm"), a.q_norm, q, w.q_norm, eps_);    show("attn.q_norm", a.q_norm);
    ops_.rms_norm(at("attn.k_norm"), a.k_norm, k, w.k_norm, eps_);    show("attn.k_norm", a.k_norm);
    q = a.q_norm, k = a.k_norm;
  }
  const auto& [positions, cos, sin] = std::tie(batch_.positions, batch_.cos, batch_.sin);
  ops_.rope(at("attn.q_rope"), a.q_rope, q, cos, sin, positions);     show("attn.q_rope", a.q_rope);
  ops_.rope(at("attn.k_rope"), a.k_rope, k, cos, sin, positions);     show("attn.k_rope", a.k_rope);
  ops_.kv_write(at("attn.kv"), cache, a.k_rope, a.v, batch_.slots);   show_kv(cache);
}

void PieceExecutor::show_kv(const KvCache& cache) {
  show_cache(model_, batch_, cache, layer_, probe_);
}

void PieceExecutor::attend(const KvCache& cache) {
  const auto scale = static_cast<float>(1 / std::sqrt(config_.head_dim));
  const int64_t window = config_.window[layer_];

  ops_.paged_attention(at("attn.out"), a_.attention, a_.q_rope, cache,
                       batch_.attention(), scale, window);         show("attn.out", a_.attention);
}

void PieceExecutor::project(const LayerWeights& w) {
  ops_.matmul(at("attn.o"), a_.branch, flat(a_.attention), w.o, w.o_bias);
                                                                      show("attn.o", a_.branch);
}

void PieceExecutor::gate_up_silu(const LayerWeights& w) {
  Activations& a = a_;
  ops_.matmul(at("mlp.gate"), a.gate, a.norm, w.gate, {});            show("mlp.gate", a.gate);
  ops_.matmul(at("mlp.up"), a.up, a.norm, w.up, {});                  show("mlp.up", a.up);
  ops_.silu_mul(at("mlp.act"), a.act, a.gate, a.up);                  show("mlp.act", a.act);
}

void PieceExecutor::down(const LayerWeights& w) {
  ops_.matmul(at("mlp.down"), a_.branch, a_.act, w.down, {});         show("mlp.down", a_.branch);
}

void PieceExecutor::experts(const LayerWeights& w) {
  Activations& a = a_;
  const auto linear = [&](PointName name, TensorView out, TensorView x, const auto& weights) {
    ops_.expert_matmul(at(name), out, x, a.experts, weights);         show(name, out);
  };

  ops_.matmul(at("mlp.router"), a.router, a.norm, w.router, {});     show("mlp.router", a.router);
  ops_.top_k(at("mlp.experts"), a.experts, a.router);                show("mlp.experts", a.experts);
  ops_.routing_weights(at("mlp.weights"), a.weights, a.router, a.experts,
                  config_.experts.normalised);                       show("mlp.weights", a.weights);
  linear("mlp.expert_gate", a.expert_gate, a.norm, w.expert_gate);
  linear("mlp.expert_up", a.expert_up, a.norm, w.expert_up);
  ops_.silu_mul(at("mlp.expert_act"), a.expert_act, a.expert_gate,
                a.expert_up);                                  show("mlp.expert_act", a.expert_act);
  linear("mlp.expert_down", a.expert_down, a.expert_act, w.expert_down);
  ops_.weighted_sum(at("mlp.combine"), a.branch, a.expert_down,
                    a.weights);                                       show("mlp.combine", a.branch);
}

void PieceExecutor::add_norm(PointName residual, PointName norm, int norm_layer,
                             const TensorView& weight) {
  ops_.add(at(residual), a_.stream, stream_, a_.branch);              show(residual, a_.stream);
  layer_ = norm_layer;
  stream_ = a_.next_half();
  ops_.rms_norm(at(norm), a_.norm, stream_, weight, eps_);            show(norm, a_.norm);
}

Forward PieceExecutor::head(const WeightView& lm_head) {
  Activations& a = a_;
  if (a.last.rows() == 0) return {a.logits, a.token};
  ops_.gather_rows(at("logits"), a.last, batch_.logit_rows, a.norm);
  ops_.matmul(at("logits"), a.logits, a.last, lm_head, {});
                                                        probe_.logits(point("logits"), a.logits);
  ops_.argmax(at("token"), a.token, a.logits);          probe_.logits(point("token"), a.token);
  return {a.logits, a.token};
}
// clang-format on

}  // namespace lockstep
