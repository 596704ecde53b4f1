#pragma once

#include <cstdint>
#include <string>

#include "src/report/document.h"
#include "src/selftest/selftest_run.h"

namespace lockstep {

// Whether a run that must be clean is not.
bool is_alarm(const SelftestOutcome& outcome);
// Whether every fault of the run has a finding at its own first place.
bool named_all(const SelftestOutcome& outcome);
// Whether the fault of the run changed nothing.
bool unseeable(const SelftestOutcome& outcome);
// The runs with one fault or one effect.
std::vector<const SelftestOutcome*> with_one(const Selftest& test);
// The least that the lower bound of the runs with several faults must reach: 6 of 6 have .54, 96 of
// 100 .90.
double least_named(const Selftest& test);

// Runs with one fault or one effect of a known size, by how much it changes at the op that it
// breaks, in units of what must be found (SelftestOutcome::limit).
struct PowerRow {
  const char* name;
  // The lower bounds (clopper_pearson_lower) of the shares must reach these; 0: they are only told.
  // A quick selftest has too few runs to claim as much as a full one.
  double least_detected, least_exact;
  int64_t runs = 0, detected = 0, exact = 0;
  bool reached() const;
};
std::vector<PowerRow> power_of(const Selftest& test);

// The outcomes had all limits been multiplied by a number: too small a one alarms, too large a one
// misses. detected: of the runs with one fault, by the rows of power_of().
struct CurvePoint {
  double multiplier;
  int64_t alarms = 0;  // of the clean runs
  std::vector<int64_t> detected;
};
std::vector<CurvePoint> curve_of(const Selftest& test);

// The judge and the other rules on the same runs: the clean ones, and those with one fault that
// changes anything.
struct RuleRow {
  std::string name;
  int64_t clean = 0, alarms = 0;
  int64_t faults = 0, detected = 0, exact = 0;
};
std::vector<RuleRow> rules_of(const Selftest& test);

// Whether what measure_judge() fills in is as it must be: every control failed, what only one
// statistic can see was seen by it, and every effect was found at the size that is stated.
bool judge_sees(const Selftest& test);
// Whether the judge may be trusted: that, no clean run and no right trace alarmed, and the bounds
// of the power table and of the runs with several faults reached.
bool passed(const Selftest& test);

// All of it for people, with the verdict as its last line, and as JSON. The data are the runs.
Document document_of(const std::vector<Selftest>& tests);

}  // namespace lockstep
