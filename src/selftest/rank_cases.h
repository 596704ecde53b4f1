// Runs of a selftest in which the model is shared by ranks.
#pragma once

#include "src/selftest/selftest_run.h"

namespace lockstep {

// Serves a case over its ranks, each a process of its own, and judges them as one model. This
// process must have one thread. Throws Error as run_ranks() does.
Selftest::Outcome judged_over_ranks(const SelftestRun& run, const SelftestPlan::Case& c);

}  // namespace lockstep
