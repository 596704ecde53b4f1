// The room of what commands have in common: opening a checkpoint, a device and the two shared
// libraries, reading requests, and the jobs that need an engine, a reference and a judge at once.
// The command line is read in tools; the work is here.
//
// A judged run fans one engine's records out to whoever looks on:
//
//     Engine::step -> Probe -> LayerWatch     says on the progress line where the pass is
//                                RecordBefore  a chosen op's inputs, on the disk before it runs
//                                OpWatch      puts results right, or measures them
//                                Only         the places that are judged, and what they read
//                                  LiveJudge  copies them -> Judge, layer by layer -> flags
//                                                         -> Causes, the trace's writer
//                                Auditor      page tables, slots and hashes of the K/V cache
//
// The reference may compute on the engine's GPU; nothing of the engine calls it.
#pragma once

#include <functional>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reference/reference.h"
#include "src/engine/engine.h"
#include "src/faults/faults.h"
#include "src/judge/judge.h"
#include "src/session/op_watch.h"
#include "src/session/record_before.h"

namespace lockstep {

class Ranked;
class UserOpCalls;

// The main job: serve requests with the engine, judge every pass as it goes, keep what was seen.
// Everything by reference or pointer is borrowed for judge_run(); the run itself is copied by those
// that change it, as confirm() does.
struct JudgedRun {
  const Checkpoint& checkpoint;
  ReferenceLibrary& reference;
  EngineOptions engine;
  // The options of the engine's executor where that is the interpreter of a schedule, for faults.
  std::optional<InterpreterOptions> step = {};
  Ranked* ranks = nullptr;      // borrowed: rank 0 of a model over ranks; null: it is over none
  std::optional<Ops> ops = {};  // nothing: those of the engine's device
  const UserOpCalls* user_op_calls = nullptr;  // borrowed: of a user's among them; null: none is
  std::vector<Request> requests;
  std::vector<FaultRequest> faults;
  JudgeOptions judge;
  int64_t memory = 0;              // see ReferenceOptions
  OpWatch* watch = nullptr;        // borrowed; around the ops under test
  RecordBefore* before = nullptr;  // borrowed; around all that, and then there are no graphs
  // Called with each pass as it was shown, and what of it is a finding.
  std::function<void(const Pass& pass, const std::vector<NodeId>& flags)> seen = {};
  bool audit = true;   // of the K/V cache too
  bool causes = true;  // say what findings look like
  std::string trace;   // where to keep what was seen; empty: nowhere
  TraceLevel level = TraceLevel::flagged;
  std::map<std::string, std::string> provenance;
  // weights_xxh3 of the provenance, where that is still being made. Not valid: it has it.
  std::shared_future<std::string> weights_hash = {};
  // Called with a line that says how far the run is, and where in the model (run_progress.h).
  std::function<void(const std::string& line)> progress;
};

// Ops of a device with bugs seeded into them and a watch around them, and the hooks that go with
// these. They remember what they have seen of an engine: one engine each. Faults and watches read
// and write tensors in host memory, so off the CPU every call then copies all of its arguments.
struct Seeded {
  Ops ops;
  Engine::Hooks hooks;
  bool clean = false;  // they are all the device's own, bugs included, and can be in graphs

  // watch, ranks, step: borrowed, may be null.
  Seeded(Ops of_device, const std::vector<FaultRequest>& faults, const ModelConfig& config,
         Device device = Device::cpu, OpWatch* watch = nullptr, const RankSeams* ranks = nullptr,
         InterpreterOptions* step = nullptr);
};

// The ops of the run with its faults and watch, and an engine of them. options: those of the
// engine, which a fault of a rank or of instructions may change.
Seeded seeded_of(const JudgedRun& run, EngineOptions& options);
std::unique_ptr<Engine> engine_of(const JudgedRun& run, const Seeded& seeded,
                                  const EngineOptions& options);

// The faults that are seeded into one rank.
std::vector<FaultRequest> faults_in_rank(std::vector<FaultRequest> faults, int rank);
// The options of one of so many ranks, which share the machine's processors. Where the faults of
// any rank want numbers in host memory, no rank has graphs: all make the same calls.
EngineOptions engine_of_rank(EngineOptions options, int ranks,
                             const std::vector<FaultRequest>& faults = {});

// How the reference beside an engine is opened: on the engine's device if LibTorch can compute
// there, on the CPU otherwise.
ReferenceOptions reference_options(const ReferenceLibrary& reference, const EngineOptions& engine,
                                   int64_t memory = 0);

// Throws Error when the run or the writing of its trace cannot go on.
Result judge_run(const JudgedRun& run);

// Empties the data of every tensor that `level` does not keep: for flagged, all but those of
// `flags` and of the places they read. What attention read is kept as hashes unless it was flagged.
void keep_only(Pass& pass, TraceLevel level, const std::vector<NodeId>& flags, const Graph& graph);

}  // namespace lockstep
