// The cost of judging, beside the least that any judge with an fp64 oracle would need.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/tensor.h"
#include "src/bench/figures.h"
#include "src/weights/checkpoint.h"

namespace lockstep {

// The cost of judging passes of an engine in bf16, on its device if LibTorch can compute there.
struct JudgingTimes {
  // The times of one pass, in seconds, a sample each time.
  struct Pass {
    // The pass through the fp64 model, which shows nothing: every matrix product once in fp64, the
    // least that any judge with such an oracle needs.
    std::vector<double> model;
    std::vector<double> ops;    // every op against its exact result
    std::vector<double> whole;  // the same with what a run has beside it: the models' tensors too
  };
  Pass decode;  // of one token
  int64_t tokens = 0;
  Pass prompt;  // of that many
  // Resident memory that judging one pass of `rows` requests took beyond what there was before it.
  int64_t rows = 0;
  double extra_bytes = 0;
  // The same as figures, with `name` before each.
  std::vector<Figure> figures(const std::string& name) const;
};

// Serves requests on that device and times their judges. Throws Error when this build has no
// reference, or when a pass is not judged clean: a wrong figure is worth nothing.
JudgingTimes time_judging(const Checkpoint& checkpoint, Device device, int threads);

}  // namespace lockstep
