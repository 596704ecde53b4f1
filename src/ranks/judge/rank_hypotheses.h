#pragma once

#include <memory>
#include <vector>

#include "src/judge/hypotheses.h"
#include "src/ranks/rank_plan.h"

namespace lockstep {

// Ways in which an op of a model over ranks may be computed wrongly, made of those of the whole
// model. Where each rank computes a part, every rank may do it wrongly, or one of them alone. Of
// sums over the ranks, and of logits that they gather, there are ways of its own. Of what a rank
// adds to a sum nothing is said.
class RankHypotheses final : public Hypotheses {
 public:
  RankHypotheses(std::unique_ptr<Hypotheses> whole, const ModelConfig& config, int ranks);

  std::unique_ptr<OpHypotheses> of(const OpInPass& op) override;

 private:
  std::unique_ptr<Hypotheses> whole_;
  std::vector<RankPlan> plans_;
};

}  // namespace lockstep
