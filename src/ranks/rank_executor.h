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
  Tensor padded;   // the same, each row as long as that of the rank with the largest part
  Tensor parts;    // [ranks, logit rows, the same]
};

// An executor of a rank: one op at a time on the rank's part of the weights, and a collective where
// ranks add up or gather. It lives for one pass.
class RankExecutor final : public PieceExecutor {
 public:
  RankExecutor(const PassParts& pass, RankParts& rank) : PieceExecutor(pass), rank_(rank) {}

  void embed(const TensorView& table) override;
  void project(const LayerWeights& w) override;
  void down(const LayerWeights& w) override;
  void experts(const LayerWeights& w) override;
  Forward head(const WeightView& lm_head) override;

 private:
  // Shows what this rank adds, adds it up in place, and shows the sum.
  void add_up(PointName partial, PointName sum, const TensorView& tensor);
  void show_partial(PointName name, const TensorView& tensor);
  void gather_logits(const TensorView& own);

  RankParts& rank_;
};

}  // namespace lockstep
