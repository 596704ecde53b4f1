#pragma once

#include <memory>
#include <optional>

#include "probes/selection.h"
#include "src/engine/engine.h"
#include "src/judge/mode_comparer.h"
#include "src/judge/oracle.h"
#include "src/ranks/judge/join.h"
#include "src/ranks/judge/own_copies.h"
#include "src/ranks/judge/put_base.h"
#include "src/ranks/judge/rank_hypotheses.h"
#include "src/ranks/judge/rank_oracle.h"
#include "src/ranks/launch.h"
#include "src/ranks/rank_seams.h"
#include "src/ranks/shard_checkpoint.h"
#include "traces/trace.h"

namespace lockstep {

// One rank of a model, whichever job it does: its weights, its way to the others, and in rank 0
// what joins the passes of all. Owned by the job; everything that it makes must be gone before it.
class Ranked {
 public:
  // A rank comes to the meeting with this: the device that it computes on, and what a Meeting has
  // where ranks were started elsewhere.
  struct Brings {
    Device device;
    bool by_rows = false;  // as of a RankPlan
    std::chrono::milliseconds patience{0};
    std::map<std::string, std::string> facts = {};
  };
  // Borrows both. Meets the other ranks.
  Ranked(const Checkpoint& whole, RankSeat& seat, Brings brings);

  int rank() const { return seat_.rank(); }
  int ranks() const { return seat_.ranks(); }
  const ModelConfig& config() const { return plan_.local; }
  Graph graph() const;
  // The things that faults may change, until engine() is called.
  RankSeams seams(EngineOptions& engine) { return {cut_, parts_, engine}; }
  std::unique_ptr<Engine> engine(Ops ops, EngineOptions options, Engine::Hooks hooks);

  void beat() { seat_.beat(); }
  // Serves to the end, and hands each pass to rank 0. base: as of sink().
  void serve(Engine& engine, const Selection& selection, const BaselineRows* base = nullptr);
  // The passes that rank 0 tells of, to the last.
  std::vector<RankPass> hear();

  // In rank 0: the oracle of what is joined, the sink of its engine, which shows the passes of all
  // ranks, joined, to `seen`, and what the end of the run is to say. base: borrowed; what a rank
  // computed is replaced by the rows of a run over none, so that each op is given those; null: it
  // is not.
  std::unique_ptr<Oracle> oracle(std::unique_ptr<Oracle> whole);
  std::unique_ptr<Hypotheses> hypotheses(std::unique_ptr<Hypotheses> whole) const;
  Sink& sink(Sink& seen, const Selection& selection, const BaselineRows* base = nullptr);
  // The pass that `seen` is shown; valid until the next one.
  const JoinedPass& joined() const { return joined_; }
  // Tells the others of a pass that rank 0 computed alone; of none: there are no more.
  void tell(const Pass* pass);
  void describe(Manifest& manifest) const;
  // Where ranks were not alike so far, for a trace.
  const std::vector<Apart>& apart() const { return apart_; }
  void part(const RanksParted& parted);
  void name_ranks(Result& result) const;
  // After all: what they did together, and where they were not alike.
  void end(Result& result);

 private:
  void take(RankPass own, Sink& seen);
  Sink& recorded(std::function<void(RankPass)> finished, const Selection& selection,
                 const BaselineRows* base);
  RankRecorder::Wants wants(const Selection& selection) const;

  const Checkpoint& whole_;
  RankSeat& seat_;
  Device device_;
  std::unique_ptr<Collectives> collectives_;
  std::optional<AgreedCalls> agreed_;
  RankPlan plan_, cut_;
  RankParts parts_;
  std::optional<ShardCheckpoint> shard_;
  std::optional<RankRecorder> recorder_;
  std::optional<PutBase> put_;
  RankOracle* oracle_ = nullptr;  // whoever judges owns it
  JoinedPass joined_;
  RowsOfPasses rows_;
  OwnCopies copies_;
  std::vector<Apart> apart_;
  bool parted_ = false;
  int64_t passes_ = 0;
};

// The ranks that a trace was made over, as its provenance says; 1 where it says nothing. Throws
// Error where that is no such number.
int ranks_of(const Manifest& manifest);

}  // namespace lockstep
