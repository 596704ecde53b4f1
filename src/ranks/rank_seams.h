#pragma once

#include "src/engine/options.h"
#include "src/ranks/rank_executor.h"

namespace lockstep {

// The things that a bug of a rank may change before its engine is made.
struct RankSeams {
  RankPlan& cut;     // by which the rank's weights are cut out of the whole ones
  RankParts& parts;  // what its executors have: collectives and their own plan
  EngineOptions& engine;
};

}  // namespace lockstep
