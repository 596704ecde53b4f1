// Passes in memory, read as a trace is.
#pragma once

#include <memory>
#include <vector>

#include "traces/trace.h"

namespace lockstep {

// The trace is complete and without problems; reading a pass copies its views, not its numbers.
std::unique_ptr<TraceReader> reader_of(Manifest manifest, std::vector<Pass> passes);

}  // namespace lockstep
