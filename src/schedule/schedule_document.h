#pragma once

#include "src/report/document.h"
#include "src/schedule/checker.h"
#include "src/schedule/schedule.h"

namespace lockstep {

// The contents of a schedule: its sizes, and a line an opcode. For programs it is the schedule
// itself (tools/schemas/schedule.schema.json).
Document document_of(const Schedule& schedule);

// The findings, each with the end of an execution that shows it; all findings where `detail` wants
// everything. For programs: tools/schemas/schedule-check.schema.json, with whole executions.
Document document_of(const Schedule& schedule, const ScheduleCheck& checked, Detail detail);

}  // namespace lockstep
