#pragma once

#include <vector>

#include "src/weights/checkpoint.h"

namespace lockstep {

// What judging decode passes of one token costs, in seconds a pass, on LibTorch's threads.
struct JudgingTimes {
  std::vector<double> judge;  // every op against its exact result
  // The same passes through the fp64 model, which is the same matrix products once: the least that
  // any judge with an fp64 oracle needs.
  std::vector<double> model;
};

// Serves a short prompt in bf16 and times both on the decode passes after it. Throws Error when
// this build has no reference, or when a pass is not judged clean: a wrong figure is worth nothing.
JudgingTimes time_judging(const Checkpoint& checkpoint, int threads);

}  // namespace lockstep
