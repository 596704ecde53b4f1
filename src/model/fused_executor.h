#pragma once

#include <optional>
#include <utility>

#include "src/model/piece_executor.h"

namespace lockstep {

// An executor that calls fused ops (kernels/fused.h), with taps for what lies inside of them, and
// the pieces of those that the table lacks. A sum and its norm may be deferred to the matmul that
// reads them; both are shown once it has computed them. What lies inside of a user's fused op is
// not shown. It lives for one pass.
class FusedExecutor final : public PieceExecutor {
 public:
  FusedExecutor(const PassParts& pass, FusedOps fused)
      : PieceExecutor(pass), fused_(std::move(fused)) {}

  void qkv(const LayerWeights& w) override;
  void qk_norm_rope_kv_write(const LayerWeights& w, const KvCache& cache) override;
  void gate_up_silu(const LayerWeights& w) override;
  void add_norm(PointName residual, PointName norm, int norm_layer,
                const TensorView& weight) override;

 private:
  // A tap of a fused op; empty when no sink wants the tensor.
  TensorView tap(PointName name, const TensorView& tensor) const {
    return probe_.wants(name.point, layer_) ? tensor : TensorView{};
  }
  bool matmul_computes_norm(const Point& norm, int layer) const;
  const AddNormInput* deferred_input() const {
    return deferred_norm_ ? &deferred_norm_->input : nullptr;
  }
  void show_deferred_norm();

  struct DeferredNorm {
    AddNormInput input;
    const Point& residual;
    const Point& norm;
    int residual_layer;
  };
  const FusedOps fused_;
  std::optional<DeferredNorm> deferred_norm_;
};

}  // namespace lockstep
