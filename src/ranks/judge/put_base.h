// A rank's ops, each given what a model over no ranks computed.
#pragma once

#include "src/judge/mode_comparer.h"
#include "src/ranks/judge/join.h"

namespace lockstep {

// Shows a rank's tensors to another sink, and then puts that rank's part of a base's rows in their
// place, as a ModeComparer does in a model over no ranks. What the base has not, as what ranks add,
// stays. Requests are those of the base.
class PutBase final : public Sink {
 public:
  // All are borrowed.
  PutBase(Sink& seen, const BaselineRows& base, const RankPlan& plan)
      : seen_(seen), base_(base), plan_(plan) {}

  bool wants(const Point&, int) const override { return true; }
  bool writes() const override { return true; }
  void begin(const PassInfo& pass) override { seen_.begin(pass); }
  void record(const Record& record) override;
  void end() override { seen_.end(); }

 private:
  Sink& seen_;
  const BaselineRows& base_;
  const RankPlan& plan_;
};

// Ranks whose passes are joined, as a comparison asks for them.
class JoinedRanks final : public ModeRanks {
 public:
  // pass: borrowed, and changed from pass to pass.
  JoinedRanks(const JoinedPass& pass, const ModelConfig& whole, int ranks)
      : pass_(pass), whole_(whole), ranks_(ranks) {}

  std::vector<double> slack_of_sum(const Place& place, const Row& row) const override;
  std::string rank_of(const Finding& finding) const override {
    return rank_text(finding, whole_, ranks_,
                     pass_.by_rows ? pass_.info.rows : std::vector<PassRow>());
  }

 private:
  const JoinedPass& pass_;
  ModelConfig whole_;
  int ranks_;
};

}  // namespace lockstep
