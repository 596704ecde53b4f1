// The checks of one schedule, and what they share: who uses which tensor.
//
//   spans -> each number is written once                          (coverage_check)
//   waits -> everything runs                                      (order_check)
//   both  -> all but one run: nobody who must wait for it does    (order_check)
#include "src/schedule/checker.h"

#include "src/schedule/coverage_check.h"
#include "src/schedule/order_check.h"

namespace lockstep {

ScheduleCheck check_schedule(const Schedule& schedule) {
  ScheduleCheck checked;
  checked.instructions = std::ssize(schedule.instructions);
  const ScheduleUses uses(schedule);
  FindingLog findings(checked);
  check_coverage(schedule, uses, findings, checked);
  check_order(schedule, uses, findings, checked);
  return checked;
}

int exit_status(const ScheduleCheck& checked) { return checked.findings.empty() ? 0 : 1; }

}  // namespace lockstep
