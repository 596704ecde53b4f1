// Outcomes of the judged runs of a selftest, as data and as a line of text: of a journal, and from
// another process.
#pragma once

#include <string>

#include "kernels/files/json.h"
#include "src/judge/verdict.h"
#include "src/selftest/selftest_cases.h"
#include "src/selftest/selftest_report.h"

namespace lockstep {

// The place at which a fault shows first. Of all layers: in the first.
Place first_place(const FaultRequest& request);

// Without the size of its effect, which the result does not say.
Selftest::Outcome outcome_of(const SelftestPlan::Case& of, const Result& result);

std::string line_of(const Selftest::Outcome& outcome);
// Throws Error on a line of anybody else.
Selftest::Outcome outcome_from(const JsonValue& json);

}  // namespace lockstep
