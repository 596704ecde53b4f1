#pragma once

#include "traces/trace.h"

namespace lockstep {

// Whether the ops of the trace's engine promise what the headers of this project say. Slots of a
// page that no token was written to are known to hold NaN then.
bool is_own_engine(const Manifest& manifest);

}  // namespace lockstep
