#pragma once

#include "src/model/piece_executor.h"
#include "src/ranks/exchange.h"
#include "src/ranks/rank_plan.h"

namespace lockstep {

// The parts of a rank that its executors need: one object for all of its passes.
struct RankParts {
  RankPlan plan;
  Exchange exchange;
  // Buffers on the device that grow and never shrink.
  Tensor tokens;   // [tokens]  int32: those that the lookup answers for
  Tensor zeros;    // a row of the stream
  Tensor partial;  // of the logits: [logit rows, rows of the rank's part of the vocabulary]
  Tensor padded;   // a part with as much room as the largest
  Tensor parts;    // [ranks, that room]
};

// An executor of a rank: one op at a time on the rank's part of the weights, and a collective where
// ranks add up or gather. It lives for one pass.
class RankExecutor final : public PieceExecutor {
 public:
  RankExecutor(const PassParts& pass, RankParts& rank) : PieceExecutor(pass), rank_(rank) {}

  void embed(const TensorView& table) override;
  void norm(int layer, const TensorView& weight) override;
  void project(const LayerWeights& w) override;
  void down(const LayerWeights& w) override;
  void experts(const LayerWeights& w) override;
  void add_norm(PointName residual, PointName norm, int norm_layer,
                const TensorView& weight) override;
  Forward head(const WeightView& lm_head) override;

 private:
  // Shows what this rank adds, adds it up in place, and shows the sum; of a stream that is shared
  // by rows, this rank's rows of it.
  void add_up(PointName partial, PointName sum, const TensorView& tensor);
  // The rank's rows of a tensor of the stream: all, or its share of them.
  TensorView own(const TensorView& tensor) const;
  void scatter(const OpContext& context, const TensorView& tensor);
  void norm_of_stream(PointName name, const TensorView& weight);
  void show_partial(PointName name, const TensorView& tensor);
  void gather_logits(const TensorView& own);

  RankParts& rank_;
};

}  // namespace lockstep
