// One set of requests served in several ways by the same engine, without a reference.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/engine/engine.h"
#include "src/faults/faults.h"
#include "src/judge/verdict.h"

namespace lockstep {

// A way of serving. To add one: write its servings and its row in modes.cc.
struct Mode {
  // An engine of its own, what it serves, and which requests of the base those are.
  struct Serving {
    EngineOptions engine;
    std::vector<Request> requests;
    std::vector<int32_t> base_of;  // as ModeComparer::Pairing::base_of
  };

  // Whole prompts in one batch: what every mode is held against. Its requests are forced to
  // what they chose.
  struct Base {
    EngineOptions engine;
    std::vector<Request> requests;
  };

  std::string_view name;
  std::string_view says;
  // Passes end at other lengths than the base's, or share pages: not comparable where rotary tables
  // depend on the length.
  bool other_lengths;
  std::vector<Serving> (*servings)(const Base& base);
  bool graphs = false;      // wants them, and so a CUDA device and ops that can be in one
  bool over_ranks = false;  // several ranks share the model, where the run has any
};
std::span<const Mode> modes();
// The words of all of them, a line each behind a first one.
std::string modes_help();

// Whether some of them are over ranks.
bool asks_for_ranks(const std::string& list);

// "all" or names with commas between. Throws Error on an unknown name, with the nearest one.
std::vector<const Mode*> modes_from(const std::string& list);

class Ranked;

struct ModesRun {
  const Checkpoint& checkpoint;
  EngineOptions engine;
  std::vector<Request> requests;
  std::vector<FaultRequest> faults;
  std::vector<const Mode*> modes;
  Ops ops = cpu_ops();  // under test; faults are seeded on top
  std::map<std::string, std::string> provenance;
  std::function<void(std::string_view)> progress;  // called before each mode, with its name
  Ranked* ranks = nullptr;  // borrowed: rank 0, of which all modes but those over ranks make no use
};

// The part of a rank other than 0: it waits, and computes in the modes over ranks.
// checkpoint, ops and faults of the run are as in rank 0; of the rest nothing is looked at.
void serve_modes(const ModesRun& run, Ranked& ranked);

// Serves the base and then every mode, compares op by op on equal inputs (see ModeComparer), and
// audits the K/V cache of each. The finding's rule names the pair of modes. Throws Error when a run
// cannot go on or no mode is left.
Result run_modes(const ModesRun& run);

}  // namespace lockstep
