#pragma once

#include "src/model/piece_executor.h"

namespace lockstep {

// An executor that calls a user's op for a whole layer (kernels/fused.h): of a layer it shows the
// stream after it, and K and V, which it finds in the cache. It lives for one pass.
class WholeLayerExecutor final : public PieceExecutor {
 public:
  using PieceExecutor::PieceExecutor;

  void norm(int layer, const TensorView& weight) override;
  // Computes the layer: here its cache is named.
  void qk_norm_rope_kv_write(const LayerWeights& w, const KvCache& cache) override;
  void add_norm(PointName residual, PointName norm, int norm_layer,
                const TensorView& weight) override;

  // Within the layer, which was computed, or is about to be:
  void qkv(const LayerWeights&) override {}
  void attend(const KvCache&) override {}
  void project(const LayerWeights&) override {}
  void gate_up_silu(const LayerWeights&) override {}
  void down(const LayerWeights&) override {}
  void experts(const LayerWeights&) override {}

 private:
  TensorView tap(PointName name, const TensorView& tensor) const {
    return probe_.wants(name.point, layer_) ? tensor : TensorView{};
  }
};

}  // namespace lockstep
