// One request served again and again: alone and in batches, at other places of a batch, by other
// numbers of threads, with graphs and without. No reference is needed.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/engine/engine.h"
#include "src/faults/faults.h"
#include "src/judge/determinism.h"

namespace lockstep {

// The checkpoint is borrowed; requests are served one after another, each with an engine of its own
// for every serving, so that nothing is left of an earlier one.
struct DeterminismRun {
  const Checkpoint& checkpoint;
  EngineOptions engine;
  std::vector<Request> requests;
  std::vector<FaultRequest> faults;
  int64_t repeats = 3;     // of the same serving, at least two
  Ops ops = cpu_ops();     // under test; faults are seeded on top
  bool can_graph = false;  // they can be in graphs
  std::map<std::string, std::string> provenance;
  std::function<void(const std::string&)> progress;  // called before each serving
};

// Each request is served alone first, which its other servings are lined up with: every op has the
// inputs then that it had there, so that each is held to its own bits. Throws Error when a run
// cannot go on, or fewer than two repeats are asked for.
Determinism run_determinism(const DeterminismRun& run);

}  // namespace lockstep
