// The state of a Judge from pass to pass: judge.cc takes the passes, judge_end.cc ends the run.
#pragma once

#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/judge/ancestry.h"
#include "src/judge/background.h"
#include "src/judge/coverage.h"
#include "src/judge/draw_replay.h"
#include "src/judge/error_map.h"
#include "src/judge/judge.h"
#include "src/judge/ledger.h"
#include "src/judge/logits.h"
#include "src/judge/model_pass.h"
#include "src/judge/op_judge.h"
#include "src/judge/reference_check.h"
#include "src/judge/routing.h"
#include "src/judge/token_flow.h"
#include "traces/run_facts.h"

namespace lockstep {

// A node is `propagated` when its error is over this many times what the same model in the run's
// dtype has there.
inline constexpr double kOverFloor = 3;

// Everything that a judge knows of a run, and the steps of its work on it.
struct Judge::State {
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
    // Requests that read what others wrote, and who may have written it.
    std::vector<std::pair<int32_t, std::vector<int32_t>>> heirs;
    bool begun = false;  // outcomes of it were entered
  };

  // Places that are judged together, as all that they read has been shown by then: what comes
  // before the layers; a layer; the last layer and what comes after it.
  struct Part {
    size_t first = 0, end = 0;  // nodes of the graph
    int through = -1;           // the layer that the models must have computed
  };

  // A pass that is judged part by part.
  struct PassInWork {
    std::optional<Pass> narrow;  // what is read instead of the pass, where that holds wider numbers
    std::optional<PassView> seen;
    const Pass* of = nullptr;                 // the pass that is seen
    std::span<const RecordedTensor> tensors;  // of it, those that were seen
    size_t complete = 0;         // parts, from the first on, all of whose tensors were seen
    size_t computed = 0;         // parts that the models have computed and that were taken over
    size_t expected = 0;         // the node after the last that is expected (OpJudge::expect)
    bool has_no_shares = false;  // all of it was seen, and no share of an attention
    std::unique_ptr<ModelPass> exact, rounded;  // null: not known
    std::optional<JudgedPass> pass;             // these, and the history
    Judged judged;
  };

  // Where a step throws, its caller lets go of the pass: nobody may read it any more by then.
  struct WaitsWhereItThrows {
    State& state;
    int before = std::uncaught_exceptions();
    ~WaitsWhereItThrows() {
      if (std::uncaught_exceptions() > before) state.let_all_end();
    }
  };

  State(const Manifest& manifest, Oracle& oracle, ReferenceModel* exact, ReferenceModel* rounded,
        JudgeOptions options);

  // The parts of a judge's work on a pass, in this order: begin, then see and judge_part, then end.
  void begin_pass(const Pass& pass);
  void see(const Pass& so_far);
  std::vector<NodeId> judge_part();
  void end_pass(const Pass& pass);
  void let_all_end();  // what other threads do for the pass
  bool has_next_part(const Pass& so_far) const;
  // The first part from next_part on that lacks a tensor.
  size_t complete_parts(const Pass& so_far) const;
  Result finish(const std::vector<RequestInfo>& requests, bool complete);
  DrawReplay::Outcome enter_what_the_end_shows(const std::vector<RequestInfo>& requests);

  void find_parts();
  size_t part_of(const Place& place) const;
  RotaryTables tables() const;
  Pass narrowed_pass(const Pass& so_far) const;
  void show(const Pass& so_far);
  void look_for_strays(const Pass& pass, size_t from);
  // Whether a pass that was seen whole has shares, of whatever layer.
  void look_for_shares();
  void begin_models();
  std::unique_ptr<ModelPass> begin_model(ReferenceModel& model, std::string_view doing,
                                         const ReferenceCheck* check_of) const;
  // Through all parts before that one, each of which is checked and compared once.
  void advance_models(size_t until);
  // Lets the models begin with that part, while the engine computes it and those before it are
  // judged.
  void compute_ahead(size_t part);
  // Takes over what the parts before that one wrote to the caches; of a long pass meanwhile, until
  // somebody asks for the history.
  void remember_caches(size_t until);
  void begin_to_remember(size_t until);
  bool remembers_meanwhile() const;
  void await_history() {
    if (for_history) for_history->wait();
  }
  // Lets the oracle be asked about the nodes that come after that one, while it is judged.
  void expect_after(size_t node);
  // Makes the next part one that may be expected too, while the one before `part` is judged.
  bool may_expect(size_t part);
  // Lets the models' tensors of the place go, or those of places that nothing after the part reads.
  void drop_compared(size_t node);
  void drop_read(const Part& part);
  void judge_place(size_t index, const JudgedPass& pass, Judged& judged);
  void hide_place(size_t index, const JudgedPass& pass, Judged& judged);
  std::vector<NodeId> flagged_by_all(std::span<const Pending> nodes, int32_t pass) const;
  // Enters outcomes whose contracts are known, and returns what of them is a finding.
  std::vector<NodeId> settle(Judged& judged);
  void end(const Judged& judged);
  bool settle(Pending& pending, const Judged& judged);
  void grade(NodeOutcome& outcome, Ancestry::Origin& origin);
  bool leaves_rows_unjudged(const Place& place, int32_t request) const;
  void lead_back(NodeOutcome& outcome, const std::vector<Place>& region);
  void judge_pool(size_t index);
  void judge_point(const Point& point);
  void name_gains(const Point& point);
  bool judge_scales(const Point& point);
  void enter(const Statistic& statistic, size_t place, std::string rule);
  RoundingContract contract_of(const Place& place) const;  // that it is judged under
  bool blame(const std::vector<Statistic>& statistics, size_t first,
             const std::vector<size_t>& gaining, const char* which);
  void judge_contracts();
  void judge_choices();
  std::vector<std::string> not_covered() const;
  void note_facts(bool complete);
  void note_regions();
  void note_mixed_dtypes();
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
  KvHistory history;
  TokenFlow flow;
  DrawReplay draws;
  LogitsComparison logits;
  RoutingComparison routing;
  ReferenceCheck reference_check;
  RunCoverage coverage;
  ErrorMap error_map;
  std::vector<Part> parts;
  std::vector<size_t> last_part;  // by node of the graph: the part that reads its tensor last
  // By node: whether it is wanted, and not hidden, so that a part waits for it.
  std::vector<bool> awaited;
  // Whether the models compute a part ahead: they do on a device and by several threads, where no
  // choice of the engine's has a say. And the threads by which they do; null before they have.
  bool models_go_ahead;
  std::unique_ptr<Background> for_exact, for_rounded;
  std::optional<PassInWork> work;
  size_t next_part = 0, remembered = 0;  // of the pass in work
  // Who remembers caches, and ends before all that it reads; null before a long pass.
  std::unique_ptr<Background> for_history;
  // A hidden place, as the regions that it is in show it in the pass that is settled.
  struct OfHidden {
    int finding = -1;  // the first of these regions'; -1: none
    double error = 0;  // the worst that this one has, by the size of its row
    double shows_from = std::numeric_limits<double>::infinity();  // the least that a right one has
  };
  // By the index of the place and the request.
  //
  //     attn.norm (hidden) -> attn.v        right, and would show a small error of attn.norm
  //                        -> attn.k_rope   wrong: by an op between the two
  //                        -> mlp.residual  wrong: by an op of its own as well
  //
  // Were attn.v not recorded, both could be wrong by attn.norm, and the second is led back to the
  // first.
  std::map<std::pair<int, int32_t>, OfHidden> of_hidden;
  // By the same: the findings of shares in the pass that is settled; -1: none.
  std::map<std::pair<int, int32_t>, int> wrong_shares;
  std::set<int> led_back;                 // places whose errors may be those before them
  std::set<int> excused;                  // those, and places whose errors are those before them
  std::set<int> wrong_by_itself;          // places that are, in a node at least
  std::set<int> of_shares;                // attentions that were held to their merge
  bool undeclared = false;                // a point was tried under several contracts
  std::vector<Judged> waiting;            // passes that are settled when the contracts are known
  std::map<size_t, int64_t> overflowing;  // nodes, by place
  int64_t with_shares = 0, without_shares = 0;  // passes that were seen whole
  std::set<int> unseen_shares;  // order of points that the trace promises and no pass has
  std::string unexplained;      // what is wrong with tokens by no op that was judged
  std::string divided;          // a point whose contract may excuse a wrong layer
  // Nodes of points that no pass had shown yet: nothing is amiss where none ever does.
  std::vector<Finding> unrecorded;
  std::vector<Finding> wrong_top_logits;  // of all passes
};

}  // namespace lockstep
