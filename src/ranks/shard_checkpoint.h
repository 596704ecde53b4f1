#pragma once

#include <deque>

#include "src/ranks/rank_plan.h"
#include "src/weights/checkpoint.h"

namespace lockstep {

// The tensors of one rank, as a checkpoint of its own, smaller model. Rows are the whole
// checkpoint's memory, which must outlive this; columns are copies that this owns.
class ShardCheckpoint {
 public:
  ShardCheckpoint(const Checkpoint& whole, const RankPlan& plan);
  ShardCheckpoint(const ShardCheckpoint&) = delete;
  ShardCheckpoint& operator=(const ShardCheckpoint&) = delete;

  const Checkpoint& checkpoint() const { return *checkpoint_; }

 private:
  TensorView columns(const TensorView& tensor, const Part& part);
  TensorView part_of(const std::string& name, const TensorView& tensor, const RankPlan& plan);

  std::deque<Tensor> copies_;  // a deque: views point into its elements
  std::optional<Checkpoint> checkpoint_;
};

}  // namespace lockstep
