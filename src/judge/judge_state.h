// The state of a Judge from pass to pass: judge.cc takes the passes, judge_end.cc ends the run.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/judge/ancestry.h"
#include "src/judge/coverage.h"
#include "src/judge/draw_replay.h"
#include "src/judge/error_map.h"
#include "src/judge/judge.h"
#include "src/judge/ledger.h"
#include "src/judge/logits.h"
#include "src/judge/op_judge.h"
#include "src/judge/reference_check.h"
#include "src/judge/routing.h"
#include "src/judge/token_flow.h"
#include "traces/run_facts.h"

namespace lockstep {

// A node is `propagated` when its error is over this many times what the same model in the run's
// dtype has there.
inline constexpr double kOverFloor = 3;

// A node that was judged, until its place's contract is known.
struct Pending {
  size_t place;
  int32_t request;
  Shape row_shape;        // of its tensor
  NodeOutcomes outcomes;  // one a contract that was tried; none: it was not selected
};

// The outcomes of a pass, to be entered when the contracts are known.
struct Judged {
  int32_t pass = 0;
  size_t errors = 0;  // its number in the error map
  std::vector<NodeRows> with_logits;
  std::vector<Pending> pending;
};

struct Judge::State {
  State(const Manifest& manifest, Oracle& oracle, ReferenceModel* exact, ReferenceModel* rounded,
        JudgeOptions options);

  std::vector<NodeId> judge(const Pass& pass);
  Result finish(const std::vector<RequestInfo>& requests, bool complete);

  void look_for_strays(const Pass& pass);
  void run_models(const PassView& seen);
  void remember_cache(const PassView& seen);
  void judge_place(size_t index, const JudgedPass& pass, Judged& judged);
  // Enters a pass whose contracts are known, and returns what of it is a finding.
  std::vector<NodeId> settle(Judged& judged);
  bool settle(Pending& pending, const Judged& judged);
  void grade(NodeOutcome& outcome, Ancestry::Origin& origin);
  void lead_back(NodeOutcome& outcome, const std::vector<Place>& region) const;
  void judge_pool(size_t index);
  void judge_point(const Point& point);
  void judge_contracts();
  void judge_choices();
  void note_facts(bool complete);
  void note_regions();
  void find_shapes(Result& result) const;
  Scope scope_of(const DrawReplay::Outcome& drawn) const;
  std::map<std::string, double> limits() const;
  int index_of(const Place& place) const {
    return static_cast<int>(std::ranges::find(ledger.places(), place) - ledger.places().begin());
  }

  Manifest manifest;
  Oracle& oracle;
  ReferenceModel* exact;
  ReferenceModel* rounded;
  JudgeOptions options;
  RunFacts facts;
  OpJudge op_judge;
  Ledger ledger;
  Ancestry ancestry;
  KvHistory history{/*keep_bytes=*/true};
  TokenFlow flow;
  DrawReplay draws;
  LogitsComparison logits;
  RoutingComparison routing;
  ReferenceCheck reference_check;
  RunCoverage coverage;
  ErrorMap error_map;
  Pass exact_pass, rounded_pass;
  // The finding, of the pass that is settled, whose region a hidden place is in: by the index of
  // the place and the request.
  std::map<std::pair<int, int32_t>, int> blamed;
  bool undeclared = false;                // a point was tried under several contracts
  std::vector<Judged> waiting;            // passes that are settled when the contracts are known
  std::map<size_t, int64_t> overflowing;  // nodes, by place
  std::string unexplained;                // what is wrong with tokens by no op that was judged
  // Nodes of points that no pass had shown yet: nothing is amiss where none ever does.
  std::vector<Finding> unrecorded;
  std::vector<Finding> wrong_top_logits;  // of all passes
};

}  // namespace lockstep
