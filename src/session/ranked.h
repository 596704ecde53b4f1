#pragma once

#include <memory>
#include <optional>

#include "probes/selection.h"
#include "src/engine/engine.h"
#include "src/judge/oracle.h"
#include "src/ranks/judge/join.h"
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
  // Borrows both. Meets the other ranks.
  Ranked(const Checkpoint& whole, RankSeat& seat);

  int rank() const { return seat_.rank(); }
  const ModelConfig& config() const { return plan_.local; }
  Graph graph() const;
  // The things that faults may change, until engine() is called.
  RankSeams seams(EngineOptions& engine) { return {cut_, parts_, engine}; }
  std::unique_ptr<Engine> engine(Ops ops, EngineOptions options, Engine::Hooks hooks);

  void beat() { seat_.beat(); }
  // Serves to the end, and hands each pass to rank 0.
  void serve(Engine& engine, const Selection& selection);

  // In rank 0: the oracle of what is joined, the sink of its engine, which shows the passes of all
  // ranks, joined, to `seen`, and what the end of the run is to say.
  std::unique_ptr<Oracle> oracle(std::unique_ptr<Oracle> whole);
  Sink& sink(Sink& seen, const Selection& selection);
  void describe(Manifest& manifest) const;
  void part(const RanksParted& parted);
  void put_into(Result& result);

 private:
  void take(RankPass own, Sink& seen);
  RankRecorder::Wants wants(const Selection& selection) const;

  const Checkpoint& whole_;
  RankSeat& seat_;
  std::unique_ptr<Collectives> collectives_;
  std::optional<AgreedCalls> agreed_;
  RankPlan plan_, cut_;
  RankParts parts_;
  std::optional<ShardCheckpoint> shard_;
  std::optional<RankRecorder> recorder_;
  RankOracle* oracle_ = nullptr;  // whoever judges owns it
  JoinedPass joined_;
  std::vector<Finding> apart_;
  bool parted_ = false;
  int64_t passes_ = 0;
};

// The ranks that a trace was made over, as its provenance says; 1 where it says nothing. Throws
// Error where that is no such number.
int ranks_of(const Manifest& manifest);

}  // namespace lockstep
