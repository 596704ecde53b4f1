#pragma once

#include <string>

#include "src/weights/checkpoint.h"
#include "traces/trace.h"

namespace lockstep {

// Throws Error where the tensors of the trace's first pass show that it is of another model than
// the checkpoint's: no tensor of two points, or of the only one, has an extent that the model has.
// One op that stores another shape is left to the judge.
void check_model_of(TraceReader& trace, const std::string& path, const Checkpoint& checkpoint);

}  // namespace lockstep
