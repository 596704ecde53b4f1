#pragma once

#include <map>

#include "src/model/piece_executor.h"
#include "src/ranks/exchange.h"
#include "src/ranks/rank_plan.h"

namespace lockstep {

// How a rank looks up the tokens of a pass, of which it has the rows of some: its row, or any, for
// each, and which of what was found is taken, a row of zeros for those of other ranks. On the
// device of the pass, where a graph reads it anew at each replay.
struct RankLookup {
  Tensor rows;   // [room]  int32
  Tensor taken;  // [room]  int32
  Tensor found;  // [room + 1, hidden], the last one zeros
};

// The parts of a rank that its executors need: one object for all of its passes.
struct RankParts {
  RankPlan plan;
  Exchange exchange;
  Device device = Device::cpu;
  DType dtype = DType::bf16;  // of the engine
  // By its room, a power of two. None is ever moved: graphs have their addresses.
  std::map<int64_t, RankLookup> lookups = {};
};

// Prepares the lookup of a pass, whose arguments are in host memory, before it is computed or
// replayed.
void prepare_lookup(RankParts& rank, const Batch& batch);

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
  // Buffers of this pass, or of the graph that it is captured in: a part of the logits, a part with
  // as much room as the largest, and those of all ranks.
  Tensor logits_, padded_, parts_;
};

}  // namespace lockstep
