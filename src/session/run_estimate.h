#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/engine/engine.h"

namespace lockstep {

// The work of judging a run, known before it begins.
struct RunEstimate {
  int64_t tokens = 0;  // of all prompts, and those that may be generated; 0: too many for an engine
  double seconds = 0;  // on this machine, within a factor of three or so; no promise
  // A line for whoever waits, when judging may take over a minute; "" otherwise.
  std::string notice() const;
};
RunEstimate estimate_judging(const ModelConfig& config, const EngineOptions& options,
                             const std::vector<Request>& requests);

}  // namespace lockstep
