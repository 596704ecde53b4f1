// The judge of a run: for each node, whether the op there introduced an error. A node is the tensor
// that the op at one place (a point of one layer) stored for one request in one pass. It is held
// against the same op, computed in fp64 from the inputs that were recorded of it. So an error is
// found where it is made, and the ops after it are judged on the wrong numbers that they were
// given.
//
//     Pass -> PassView    its tensors by place and request; layer by layer:
//          -> models      where given, the same layer in fp64 and rounded: for what is propagated
//          -> KvHistory   what was written to the caches, against what attention reads
//          -> OpJudge     place by place, in graph order: oracle -> budget -> measure -> outcome
//          -> Contracts   where a point rounds; passes wait while several are tried
//          -> Ancestry    nodes that follow from a finding, or from an overflow that is due
//          -> Ledger      counts, findings, a summary a place -> finish() -> Result
//
// The room runs no engine and calls none of its ops: numbers come as records, live or from a trace,
// and the truth comes from an Oracle.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/judge/budget.h"
#include "src/judge/judged_rows.h"
#include "src/judge/kv_history.h"
#include "src/judge/limits.h"
#include "src/judge/oracle.h"
#include "src/judge/presets.h"
#include "src/judge/verdict.h"
#include "traces/trace.h"

namespace lockstep {

struct JudgeOptions {
  Selection selection;     // nodes outside are neither expected nor judged
  RowsToJudge rows;        // of each node; whoever feeds the judge gives it no models then
  int threads = 0;         // that measure; 0: one a core
  double limit_scale = 1;  // multiplies every limit: 0 must make every inexact node fail
  Limits limits;
  // By point name, instead of what the trace declares; a point that is missing is tried.
  std::optional<std::map<std::string, RoundingContract>> contracts;
  std::vector<PointRounding> rounding;  // over those; of two for one point the last one counts
  std::string asked;                    // the two as a person asked for them; "": for nothing
  // "fp32" or "tf32", instead of what the trace declares of its linear ops.
  std::optional<std::string> accumulator;
  // Whoever feeds the judge stops after the first pass with a finding.
  bool fail_fast = false;
  // Whoever feeds the judge makes the error budget of the logits too (error_budget.h).
  bool error_budget = false;
  // Whether any pass has a tensor of the place, of a trace that may lack some: what is judged at a
  // place then is its region (hidden.h). Empty: every place is recorded.
  std::function<bool(const Place&)> recorded;
  // When the run ends and is clean, learns from it what the limits of its engine can be. Borrowed.
  Limits* learn = nullptr;
  // Whether an op may store the largest number where its exact result overflows to Inf, as engines
  // do that clamp. Ops that are declared to round as IEEE 754 says may not.
  bool may_saturate = true;
  // Whether what is outside of the selection was made up as the inputs of an op, so that nobody
  // need have judged who made its NaN or Inf.
  bool inputs_are_given = false;
  // Called as each layer of a pass is reached, with what is done to it. May be empty.
  std::function<void(std::string_view doing, int layer)> progress = {};
};

// Judges passes one after another, live or from a saved trace: for every node whether the op at
// that place introduced an error, given its own recorded inputs. One thread at a time may use it;
// it measures by threads of its own, and its results do not depend on how many these are.
class Judge {
 public:
  // `oracle`, `exact` (the model in fp64) and `rounded` (the same model in the run's dtype) are
  // borrowed. exact and rounded are both null or both given; without them nothing is `propagated`.
  // Throws Error when the trace's graph is not the oracle's, and where no op can round as asked.
  Judge(const Manifest& manifest, Oracle& oracle, ReferenceModel* exact, ReferenceModel* rounded,
        JudgeOptions options);
  ~Judge();

  // The passes of a run in their order. Returns the places of this pass that were not clean, so
  // that a writer can keep their tensors and those of their producers.
  std::vector<NodeId> judge(const Pass& pass);
  // The same for a pass that is still being computed, part by part: what comes before the layers, a
  // layer, ..., the last layer and what comes after it. begin_pass(); judge_part() as long as there
  // are parts left, each when has_next_part() or all has been shown; end_pass(). `so_far` has the
  // tensors that were shown, in their order, and keeps its place until the next call. Those whose
  // place has_judged() and that nothing reads_later() may have lost their data by then, logits and
  // tokens excepted. The outcomes, and all places returned together, are those of judge().
  void begin_pass(const Pass& so_far);
  bool has_next_part(const Pass& so_far) const;
  std::vector<NodeId> judge_part(const Pass& so_far);
  void end_pass(const Pass& pass);
  int parts_left() const;
  bool has_judged(const Place& place) const;
  bool has_just_judged(const Place& place) const;  // in the last part
  bool reads_later(const Place& place) const;
  // The request is in no further pass, and nobody inherits from it: here and in both models goes
  // what was kept of its K and V for later passes.
  void end(int32_t request);

  // For who looks into findings as they come: the contract that the place is judged under so far,
  // and what was written to the caches up to the last pass that was judged.
  RoundingContract contract_at(const Place& place) const;
  // Whether the op of the place can round so at all.
  bool may_be_of(const Place& place, RoundingContract contract) const;
  const KvHistory& history() const;
  // The strictest other contract under which the nodes of the place that are findings, of which the
  // first few are tried, are all right. Nothing: there is none.
  std::optional<RoundingContract> right_as(const Place& place) const;
  // The hidden places that the op of the place is judged together with, in graph order.
  std::vector<Place> region_of(const Place& place) const;

  // After the last pass. `complete` false: the trace is known to lack passes.
  Result finish(const std::vector<RequestInfo>& requests, bool complete);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
