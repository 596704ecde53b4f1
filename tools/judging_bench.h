#pragma once

#include <vector>

#include "src/weights/checkpoint.h"

namespace lockstep {

// What judging decode passes costs: in seconds a pass of one token, on LibTorch's threads.
struct JudgingTimes {
  std::vector<double> judge;  // every op against its exact result
  // The same passes through the fp64 model, which is the same matrix products once: the least that
  // any judge with an fp64 oracle needs.
  std::vector<double> model;
  // Resident memory that judging one pass of `rows` requests took beyond what there was before it.
  int64_t rows = 0;
  double extra_bytes = 0;
};

// Serves a short prompt in bf16 and times both on the decode passes after it. Throws Error when
// this build has no reference, or when a pass is not judged clean: a wrong figure is worth nothing.
JudgingTimes time_judging(const Checkpoint& checkpoint, int threads);

}  // namespace lockstep
