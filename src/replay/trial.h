// One implementation of an op held to the exact results, as the judge holds an engine to them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/causes/causes.h"
#include "src/judge/judge.h"

namespace lockstep {

// An oracle that is asked the same by several judges of one pass, and answers once. It takes calls
// for the same where contract and rows are, which holds within one pass of one place; forget() must
// come before the next.
class SharedOracle final : public Oracle {
 public:
  explicit SharedOracle(Oracle& oracle) : oracle_(oracle) {}

  Graph graph() const override { return oracle_.graph(); }
  bool has_bias(const Place& place) const override { return oracle_.has_bias(place); }
  int64_t chosen_experts() const override { return oracle_.chosen_experts(); }
  Exact evaluate(const OracleCall& call) override;

  struct Answer {
    RoundingContract contract = RoundingContract::fused;
    std::vector<Row> rows;
    Exact exact;
  };
  // In the order in which they were first asked for.
  const std::vector<Answer>& answers() const { return answers_; }
  void forget() { answers_.clear(); }  // before each pass

 private:
  Oracle& oracle_;
  std::vector<Answer> answers_;
};

// An implementation's account.
struct TrialResult {
  // An element beside its exact result.
  struct Element {
    int32_t pass = 0, request = 0;
    std::vector<int64_t> index;  // [position, axes of the point ...]
    double want = 0, got = 0;
    double budgets = 0;  // |got - want| / B; Infinity: no number, or there is no B
  };

  std::string name;
  int64_t expected = 0, judged = 0, bitwise = 0, wrong = 0;  // nodes
  std::string reason;  // why nodes were not judged; empty: all were
  std::optional<Element> worst;
  std::optional<double> ulps;        // the most that an element is off, in ulp of its exact result
  int64_t equal_rows = 0, rows = 0;  // with the bits of those that the trace has; of all compared
  std::optional<double> seconds;     // of all passes together; none: it was not computed here
  std::string contract;              // that it was held to
  std::string rule;                  // of its findings: which part of the tensor
  std::vector<Finding::LooksLike> looks_like;
};

// Judges one place of passes that hold what its op reads and what an implementation made of it.
class Trial {
 public:
  // Everything is borrowed. contracts: as in JudgeOptions.
  Trial(std::string name, const Manifest& manifest, const Place& place, SharedOracle& oracle,
        Hypotheses& hypotheses, JudgeOptions options);

  // After oracle.forget(), once a pass. kept: what the trace has of the place; null of the trace's
  // own trial.
  void add(const Pass& pass, const Pass* kept);
  void took(double seconds) { result_.seconds = result_.seconds.value_or(0) + seconds; }
  const KvHistory& history() const { return judge_.history(); }
  TrialResult finish();

 private:
  // The distances of all elements from the exact results under one contract.
  struct Distances {
    std::optional<TrialResult::Element> worst;
    double ulps = 0;
  };
  void measure(const Pass& pass);
  void measure(int32_t pass, const SharedOracle::Answer& answer, const TensorView& got);
  void compare(const Pass& pass, const Pass& kept);

  const Manifest& manifest_;
  Place place_;
  SharedOracle& oracle_;
  Judge judge_;
  Causes causes_;
  std::map<RoundingContract, Distances> distances_;
  TrialResult result_;
};

}  // namespace lockstep
