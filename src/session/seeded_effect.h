#pragma once

#include <string>

#include "src/session/judged_run.h"

namespace lockstep {

// A fault as it was asked for: "rms-norm-eps@layer=3,size=0.01".
std::string text_of(const FaultRequest& fault);

// Says in the result of a run what came of each bug that was seeded into it and that it does not
// show: that it changed no number, or first one that the selection leaves out, so that it was not
// tried, which makes a clean run inconclusive; or what it changed first, and why that is no
// finding. The requests are served again for it, with each bug alone and with none. Not for a model
// over ranks.
void say_of_faults(const JudgedRun& run, Result& result);

}  // namespace lockstep
