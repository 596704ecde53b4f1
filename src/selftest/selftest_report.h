#pragma once

#include <cstdint>
#include <string>

#include "src/selftest/selftest_run.h"

namespace lockstep {

// Runs with one fault or one effect of a known size, by how much it changes at the op that it
// breaks, in units of what must be found (SelftestOutcome::limit).
struct PowerRow {
  const char* name;
  // What the lower bounds (clopper_pearson_lower) of the shares must reach; 0: only told. A quick
  // selftest has too few runs to claim as much as a full one.
  double least_detected, least_exact;
  int64_t runs = 0, detected = 0, exact = 0;
  bool reached() const;
};
std::vector<PowerRow> power_of(const Selftest& test);

// What would have come out with all limits multiplied by a number: too small alarms, too large
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

std::string text_of(
    const std::vector<Selftest>& tests);  // for people; the last line is the verdict
std::string json_of(const std::vector<Selftest>& tests);

}  // namespace lockstep
