#pragma once

#include "src/schedule/schedule_uses.h"

namespace lockstep {

// Whether all instructions run, and whether the counters keep every read behind its write and every
// write behind the last read of what lay there. Adds to `findings` and to the pairs of `checked`,
// whose findings it puts in the order of an execution.
void check_order(const Schedule& schedule, const ScheduleUses& uses, FindingLog& findings,
                 ScheduleCheck& checked);

}  // namespace lockstep
