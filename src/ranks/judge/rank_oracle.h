#pragma once

#include <memory>

#include "src/judge/oracle.h"
#include "src/ranks/judge/join.h"
#include "src/ranks/rank_plan.h"

namespace lockstep {

// The oracle of a model over ranks, made of that of the whole model. What a rank adds to a sum is
// the exact result of its columns: the whole op, given zeros in the others. The sum is an op of its
// own, of the partial sums as they were recorded. A part is computed from what its own rank read,
// where that is not what rank 0 read.
class RankOracle final : public Oracle {
 public:
  RankOracle(std::unique_ptr<Oracle> whole, const ModelConfig& config, int ranks);

  // The pass that calls are about from here on; borrowed until the next one.
  void begin_pass(const JoinedPass* pass) { pass_ = pass; }

  // The oracle of the whole model.
  Oracle& whole() { return *whole_; }
  Graph graph() const override { return graph_; }
  bool has_bias(const Place& place) const override;
  int64_t chosen_experts() const override { return whole_->chosen_experts(); }
  Exact evaluate(const OracleCall& call) override;

 private:
  Exact sum_of(const OracleCall& call) const;
  Exact partials_of(const OracleCall& call);
  Exact partial_of(const OracleCall& call, const Place& of, int rank);
  Exact by_rank(const OracleCall& call);
  // The caches that an attention reads, where ranks have unlike copies of heads; null: they have
  // not.
  const std::vector<RankTensor>* caches_of(const OracleCall& call) const;
  // The inputs of the call as that rank has them. `kept` owns what is copied.
  std::vector<TensorView> inputs_of(const OracleCall& call, int rank,
                                    std::vector<Tensor>& kept) const;

  std::unique_ptr<Oracle> whole_;
  std::vector<RankPlan> plans_;
  Graph graph_;
  const JoinedPass* pass_ = nullptr;
};

}  // namespace lockstep
