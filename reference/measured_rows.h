#pragma once

#include "reference/device_copies.h"
#include "src/judge/oracle.h"

namespace lockstep {

// Measures what a call asks for beside `exact`, its answer, whose numbers are held (bridge.h), on
// the device that holds them: fills Exact::measured, and empties what is needed no more, or leaves
// all as it is. Every sum is the one of src/stats/row_loops.cc but for the order of its terms,
// which the sizes alone decide.
void measure_rows(const OracleCall& call, DeviceCopies& copies, Exact& exact);

}  // namespace lockstep
