#pragma once

#include "src/model/layer_executor.h"

namespace lockstep {

// An executor that calls one op at a time and shows its output before the next begins. It lives for
// one pass.
class PieceExecutor : public LayerExecutor {
 public:
  explicit PieceExecutor(const PassParts& pass)
      : model_(pass.model),
        config_(pass.model.config()),
        ops_(pass.model.ops()),
        eps_(static_cast<float>(config_.norm_eps)),
        batch_(pass.batch),
        a_(pass.activations),
        probe_(pass.probe) {}

  void embed(const TensorView& table) override;
  void norm(int layer, const TensorView& weight) override;
  void qkv(const LayerWeights& w) override;
  void qk_norm_rope_kv_write(const LayerWeights& w, const KvCache& cache) override;
  void attend(const KvCache& cache) override;
  void project(const LayerWeights& w) override;
  void gate_up_silu(const LayerWeights& w) override;
  void down(const LayerWeights& w) override;
  void experts(const LayerWeights& w) override;
  void add_norm(PointName residual, PointName norm, int norm_layer,
                const TensorView& weight) override;
  Forward head(const WeightView& lm_head) override;

 protected:
  OpContext at(PointName name) const { return model_.context(name.point, layer_); }
  void show(PointName name, const TensorView& tensor) { probe_(name.point, layer_, tensor); }
  void show_kv(const KvCache& cache);
  void show_angles(PointName name, const TensorView& rows, const TensorView& table);

  const Model& model_;
  const ModelConfig& config_;
  const Ops& ops_;
  const float eps_;
  const Batch& batch_;
  Activations& a_;
  Probe& probe_;
  int layer_ = -1;
  TensorView stream_;  // as the half of a layer that is computed found it
};

}  // namespace lockstep
