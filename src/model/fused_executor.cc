// Fused ops compute several of the paper's steps at once and still show each of them: what lies
// inside comes out through taps, pointers to memory that the kernel writes to when somebody looks.
// A sum and its norm may be left to the matmul that reads them; both are shown once it has computed
// them.
#include "src/model/fused_executor.h"

#include <utility>

#include "src/model/whole_layer_executor.h"

namespace lockstep {
// Whether the matmul that reads that norm can compute it, and the sum before it, itself.
bool FusedExecutor::matmul_computes_norm(const Point& norm, int layer) const {
  if (norm == point("attn.norm"))
    return fused_.qkv_matmul != nullptr && !fused_.is_of_user(kQkvMatmul);
  if (norm == point("mlp.norm"))
    return fused_.gate_up_silu != nullptr && !fused_.is_of_user(kGateUpSilu) &&
           !config_.experts.in(layer);
  return false;
}

void FusedExecutor::add_norm(PointName residual, PointName norm, int norm_layer,
                             const TensorView& weight) {
  if (!fused_.add_rms_norm) return PieceExecutor::add_norm(residual, norm, norm_layer, weight);
  const OpContext sum = at(residual);
  // Both are read, and next_half() may give the members other memory.
  const TensorView before = stream_, branch = a_.branch;
  stream_ = a_.next_half();
  const AddNormInput input = {
      .sum = stream_, .a = before, .b = branch, .weight = weight, .eps = eps_};
  // Until the matmul has run neither sum nor norm is there to be shown.
  if (matmul_computes_norm(norm.point, norm_layer)) {
    deferred_norm_.emplace(DeferredNorm{.input = input,
                                        .residual = residual.point,
                                        .norm = norm.point,
                                        .residual_layer = std::exchange(layer_, norm_layer)});
    return;
  }
  fused_.add_rms_norm(sum, a_.norm, input);
  show(residual, stream_);
  layer_ = norm_layer;
  show(norm, a_.norm);
}

void FusedExecutor::show_deferred_norm() {
  if (!deferred_norm_) return;
  probe_(deferred_norm_->residual, deferred_norm_->residual_layer, stream_);
  probe_(deferred_norm_->norm, layer_, a_.norm);
  deferred_norm_.reset();
}

void FusedExecutor::qkv(const LayerWeights& w) {
  if (!fused_.qkv_matmul) return PieceExecutor::qkv(w);
  const Linear all[] = {
      {flat(a_.q), w.q, w.q_bias}, {flat(a_.k), w.k, w.k_bias}, {flat(a_.v), w.v, w.v_bias}};
  fused_.qkv_matmul(at("attn.q"), all, a_.norm, deferred_input());
  show_deferred_norm();
  show("attn.q", a_.q);
  show("attn.k", a_.k);
  show("attn.v", a_.v);
}

void FusedExecutor::qk_norm_rope_kv_write(const LayerWeights& w, const KvCache& cache) {
  if (!fused_.qk_norm_rope_kv_write) return PieceExecutor::qk_norm_rope_kv_write(w, cache);
  fused_.qk_norm_rope_kv_write(at("attn.kv"), {.q = a_.q,
                                               .k = a_.k,
                                               .v = a_.v,
                                               .q_weight = w.q_norm,
                                               .k_weight = w.k_norm,
                                               .eps = eps_,
                                               .cos = batch_.cos,
                                               .sin = batch_.sin,
                                               .positions = batch_.positions,
                                               .slots = batch_.slots,
                                               .q_rope = a_.q_rope,
                                               .cache = cache,
                                               .q_norm = tap("attn.q_norm", a_.q_norm),
                                               .k_norm = tap("attn.k_norm", a_.k_norm),
                                               .k_rope = tap("attn.k_rope", a_.k_rope)});
  if (config_.qk_norm && !fused_.is_of_user(kQkNormRopeKvWrite)) {
    show("attn.q_norm", a_.q_norm);
    show("attn.k_norm", a_.k_norm);
  }
  show("attn.q_rope", a_.q_rope);
  show("attn.k_rope", a_.k_rope);
  show_kv(cache);
}

void FusedExecutor::gate_up_silu(const LayerWeights& w) {
  if (!fused_.gate_up_silu) return PieceExecutor::gate_up_silu(w);
  fused_.gate_up_silu(at("mlp.act"), a_.act, a_.norm, w.gate, w.up, tap("mlp.gate", a_.gate),
                      tap("mlp.up", a_.up), deferred_input());
  show_deferred_norm();
  if (!fused_.is_of_user(kGateUpSilu)) {
    show("mlp.gate", a_.gate);
    show("mlp.up", a_.up);
  }
  show("mlp.act", a_.act);
}

std::unique_ptr<LayerExecutor> make_executor(const PassParts& pass) {
  if (const auto& own = pass.model.placement().make_executor) return own(pass);
  return make_own_executor(pass);
}

std::unique_ptr<LayerExecutor> make_own_executor(const PassParts& pass) {
  const FusedOps& all = pass.model.fused();
  if (all.decoder_layer) return std::make_unique<WholeLayerExecutor>(pass);
  // Who changes what is shown must be asked before the next piece is computed, which a user's
  // fused op, that shows nothing of its inside, does not prevent.
  if ((pass.probe.writes() || all.pieces == nullptr) && all.of_user.empty())
    return std::make_unique<PieceExecutor>(pass);
  return std::make_unique<FusedExecutor>(pass, pass.probe.writes() ? all.users_alone() : all);
}

}  // namespace lockstep
