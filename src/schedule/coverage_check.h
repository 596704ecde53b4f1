#pragma once

#include "src/schedule/schedule_uses.h"

namespace lockstep {

// Whether instructions hold what their opcodes and rows are for, and each number of each tensor is
// written once, or share by share: no order is looked at. Adds to `findings` and to the numbers of
// `checked`.
void check_coverage(const Schedule& schedule, const ScheduleUses& uses, FindingLog& findings,
                    ScheduleCheck& checked);

}  // namespace lockstep
