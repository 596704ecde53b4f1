#include "src/selftest/selftest_report.h"

#include <algorithm>
#include <cmath>

#include "src/stats/moments.h"

namespace lockstep {
namespace {

constexpr size_t kPowerRows = 5;

// The row of the power table that a run belongs to.
size_t row_of(const SelftestOutcome& outcome) {
  if (unseeable(outcome)) return 4;
  if (!outcome.effect || outcome.nonfinite || outcome.exact_class) return 0;
  const double times = *outcome.effect / outcome.limit;
  return times >= 2 ? 1 : times >= 0.5 ? 2 : 3;
}

}  // namespace

bool is_alarm(const SelftestOutcome& outcome) { return outcome.verdict != RunVerdict::clean; }
bool named_all(const SelftestOutcome& outcome) { return outcome.found == outcome.seeded; }
bool unseeable(const SelftestOutcome& outcome) { return outcome.effect && *outcome.effect == 0; }

std::vector<const SelftestOutcome*> with_one(const Selftest& test) {
  std::vector<const SelftestOutcome*> all;
  for (const auto* outcomes : {&test.faults, &test.effects})
    for (const SelftestOutcome& outcome : *outcomes) all.push_back(&outcome);
  return all;
}

double least_named(const Selftest& test) { return test.quick ? 0.50 : 0.90; }

bool PowerRow::reached() const {
  return clopper_pearson_lower(detected, runs) >= least_detected &&
         clopper_pearson_lower(exact, runs) >= least_exact;
}

std::vector<PowerRow> power_of(const Selftest& test) {
  const auto least = [&](double full, double quick) { return test.quick ? quick : full; };
  const double exact = least(0.90, 0.80);
  std::vector<PowerRow> rows = {{"structural, non-finite, class exact", exact, exact},
                                {"2 limits or more", least(0.97, 0.93), least(0.95, 0.90)},
                                {"0.5 to 2 limits", 0.80, 0.75},
                                {"under 0.5 limits", 0, 0},
                                {"no effect: cannot be seen", 0, 0}};
  for (const SelftestOutcome* outcome : with_one(test)) {
    PowerRow& row = rows[row_of(*outcome)];
    ++row.runs;
    row.detected += outcome->verdict == RunVerdict::diverged ? 1 : 0;
    row.exact += outcome->first_exact ? 1 : 0;
  }
  return rows;
}

std::vector<CurvePoint> curve_of(const Selftest& test) {
  std::vector<CurvePoint> curve;
  for (const double multiplier : {0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 4.0, 10.0}) {
    CurvePoint& point = curve.emplace_back(CurvePoint{.multiplier = multiplier});
    const auto found = [&](const SelftestOutcome& o) { return !(o.limit_ratio <= multiplier); };
    point.alarms = std::ranges::count_if(test.clean, found);
    point.detected.resize(kPowerRows);
    for (const SelftestOutcome* outcome : with_one(test))
      point.detected[row_of(*outcome)] += found(*outcome) ? 1 : 0;
  }
  return curve;
}

std::vector<RuleRow> rules_of(const Selftest& test) {
  std::vector<RuleRow> rows = {{.name = "lockstep"}};
  const auto each = [&](const SelftestOutcome& outcome, const auto& count) {
    count(rows[0], outcome.verdict != RunVerdict::clean, outcome.first_exact);
    for (const auto& [name, other] : outcome.others) {
      auto row = std::ranges::find(rows, name, &RuleRow::name);
      if (row == rows.end()) row = rows.insert(row, {.name = name});
      count(*row, other.alarmed, other.first_exact);
    }
  };
  for (const SelftestOutcome& outcome : test.clean)
    each(outcome, [](RuleRow& row, bool alarmed, bool) {
      ++row.clean;
      row.alarms += alarmed ? 1 : 0;
    });
  for (const SelftestOutcome& outcome : test.faults)
    if (!unseeable(outcome))
      each(outcome, [](RuleRow& row, bool alarmed, bool exact) {
        ++row.faults;
        row.detected += alarmed ? 1 : 0;
        row.exact += exact ? 1 : 0;
      });
  return rows;
}

bool judge_sees(const Selftest& test) {
  return !test.controls.empty() && std::ranges::all_of(test.controls, &Control::failed) &&
         !test.statistics.empty() && std::ranges::all_of(test.statistics, &StatisticCase::passed) &&
         !test.limits.empty() && std::ranges::all_of(test.limits, &DetectionLimit::passed);
}

bool passed(const Selftest& test) {
  const auto named = std::ranges::count_if(test.several, named_all);
  const double several = clopper_pearson_lower(named, std::ssize(test.several));
  return judge_sees(test) && !test.clean.empty() && std::ranges::none_of(test.clean, is_alarm) &&
         std::ranges::none_of(test.traces, &TraceCheck::alarmed) &&
         std::ranges::all_of(power_of(test), &PowerRow::reached) && several >= least_named(test);
}

}  // namespace lockstep
