// The result of a selftest: how often an error of a size was found and named at its place, for this
// judge and for simpler rules. Shares are held to their bounds by Clopper and Pearson, so that a
// few lucky runs prove nothing.
#include "src/selftest/selftest_report.h"

#include <algorithm>
#include <cmath>

#include "src/stats/moments.h"

namespace lockstep {
namespace {

constexpr size_t kPowerRows = 5;

// The row of the power table that a run belongs to. The numbers are those of power()'s rows.
size_t row_of(const Selftest::Outcome& outcome) {
  if (outcome.is_unseeable()) return 4;
  // An exact op, or a result that is not finite, has no size that it could be too small by.
  if (!outcome.effect || outcome.nonfinite || outcome.exact_class) return 0;
  const double times = *outcome.effect / outcome.limit;
  return times >= 2 ? 1 : times >= 0.5 ? 2 : 3;
}

}  // namespace

std::vector<const Selftest::Outcome*> Selftest::with_one() const {
  std::vector<const Selftest::Outcome*> all;
  for (const auto* outcomes : {&faults, &effects})
    for (const Selftest::Outcome& outcome : *outcomes) all.push_back(&outcome);
  return all;
}

bool Selftest::PowerRow::reached() const {
  return clopper_pearson_lower(detected, runs) >= least_detected &&
         clopper_pearson_lower(exact, runs) >= least_exact;
}

std::vector<Selftest::PowerRow> Selftest::power() const {
  const auto least = [&](double of_full, double of_quick) { return quick ? of_quick : of_full; };
  const double exact = least(0.90, 0.80);
  std::vector<PowerRow> rows = {{"structural, non-finite, class exact", exact, exact},
                                {"2 limits or more", least(0.97, 0.93), least(0.95, 0.90)},
                                {"0.5 to 2 limits", 0.80, 0.75},
                                {"under 0.5 limits", 0, 0},
                                {"no effect: cannot be seen", 0, 0}};
  for (const Selftest::Outcome* outcome : with_one()) {
    PowerRow& row = rows[row_of(*outcome)];
    ++row.runs;
    row.detected += outcome->verdict == RunVerdict::diverged ? 1 : 0;
    row.exact += outcome->first_exact ? 1 : 0;
  }
  return rows;
}

std::vector<Selftest::CurvePoint> Selftest::curve() const {
  std::vector<CurvePoint> curve;
  for (const double multiplier : {0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 4.0, 10.0}) {
    CurvePoint& point = curve.emplace_back(CurvePoint{.multiplier = multiplier});
    // NaN counts as found.
    const auto found = [&](const Selftest::Outcome& o) { return !(o.limit_ratio <= multiplier); };
    point.alarms = std::ranges::count_if(clean, found);
    point.detected.resize(kPowerRows);
    for (const Selftest::Outcome* outcome : with_one())
      point.detected[row_of(*outcome)] += found(*outcome) ? 1 : 0;
  }
  return curve;
}

std::vector<Selftest::RuleRow> Selftest::rules() const {
  std::vector<RuleRow> rows = {{.name = "lockstep"}};
  const auto each = [&](const Selftest::Outcome& outcome, const auto& count) {
    count(rows[0], outcome.verdict != RunVerdict::clean, outcome.first_exact);
    for (const auto& [name, other] : outcome.others) {
      auto row = std::ranges::find(rows, name, &RuleRow::name);
      if (row == rows.end()) row = rows.insert(row, {.name = name});
      count(*row, other.alarmed, other.first_exact);
    }
  };
  for (const Selftest::Outcome& outcome : clean)
    each(outcome, [](RuleRow& row, bool alarmed, bool) {
      ++row.clean;
      row.alarms += alarmed ? 1 : 0;
    });
  for (const Selftest::Outcome& outcome : faults)
    if (!outcome.is_unseeable())
      each(outcome, [](RuleRow& row, bool alarmed, bool exact) {
        ++row.faults;
        row.detected += alarmed ? 1 : 0;
        row.exact += exact ? 1 : 0;
      });
  return rows;
}

// Nothing measured is nothing seen: empty lists fail.
bool Selftest::sees() const {
  return !controls.empty() && std::ranges::all_of(controls, &Control::failed) &&
         !statistics.empty() && std::ranges::all_of(statistics, &StatisticCase::passed) &&
         !limits.empty() && std::ranges::all_of(limits, &Detection::Limit::passed);
}

bool Selftest::passed() const {
  const auto named = std::ranges::count_if(several, &Selftest::Outcome::named_all);
  const double bound = clopper_pearson_lower(named, std::ssize(several));
  return sees() && !clean.empty() && std::ranges::none_of(clean, &Selftest::Outcome::is_alarm) &&
         std::ranges::none_of(traces, &TraceCheck::alarmed) &&
         std::ranges::all_of(power(), &PowerRow::reached) && bound >= least_named();
}

}  // namespace lockstep
