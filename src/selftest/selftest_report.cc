#include "src/selftest/selftest_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "src/report/output.h"
#include "src/stats/moments.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// What the lower bound of the runs with several faults must reach: 6 of 6 have .54, 96 of 100 .90.
constexpr double kSeveralNamed = 0.90, kQuickSeveralNamed = 0.50;
constexpr size_t kPowerRows = 5;

bool is_alarm(const SelftestOutcome& outcome) { return outcome.verdict != "clean"; }
bool named_all(const SelftestOutcome& outcome) { return outcome.found == outcome.seeded; }
bool unseeable(const SelftestOutcome& outcome) { return outcome.effect && *outcome.effect == 0; }

double share(int64_t k, int64_t n) {
  return n > 0 ? static_cast<double>(k) / static_cast<double>(n) : 0;
}

// Which row of the power table a run belongs to.
size_t row_of(const SelftestOutcome& outcome) {
  if (unseeable(outcome)) return 4;
  if (!outcome.effect || outcome.nonfinite || outcome.exact_class) return 0;
  const double times = *outcome.effect / outcome.limit;
  return times >= 2 ? 1 : times >= 0.5 ? 2 : 3;
}

// All runs of the power table.
std::vector<const SelftestOutcome*> with_one(const Selftest& test) {
  std::vector<const SelftestOutcome*> all;
  for (const auto* outcomes : {&test.faults, &test.effects})
    for (const SelftestOutcome& outcome : *outcomes) all.push_back(&outcome);
  return all;
}

std::string effect_text(const SelftestOutcome& outcome) {
  return outcome.effect ? fmt::format("{:.3g} ulp, {:.3g} of its limit", *outcome.effect,
                                      *outcome.effect / outcome.limit)
                        : "exact or wrong";
}

std::string bounds_text(int64_t k, int64_t n) {
  return fmt::format("{} of {} ({:.1f} %, at least {:.1f} %)", k, n, 100 * share(k, n),
                     100 * clopper_pearson_lower(k, n));
}

std::string wanted_text(const PowerRow& row) {
  if (row.least_detected == 0) return row.reached() ? "" : "no";
  return fmt::format("at least {:.0f} and {:.0f} %{}", 100 * row.least_detected,
                     100 * row.least_exact, row.reached() ? "" : ": no");
}

void tell_clean(const Selftest& test, std::string& text) {
  const auto n = std::ssize(test.clean);
  const auto alarms = std::ranges::count_if(test.clean, is_alarm);
  text += fmt::format("false alarms      {} of {} clean runs (at most {:.2f} %)\n", alarms, n,
                      100 * clopper_pearson_upper(alarms, n));
  for (const SelftestOutcome& outcome : test.clean)
    if (is_alarm(outcome)) text += fmt::format("  alarm: {}: {}\n", outcome.name, outcome.story);
}

void tell_traces(const Selftest& test, std::string& text) {
  for (const TraceCheck& trace : test.traces)
    text +=
        fmt::format("{}: {}: {} of {} nodes judged, {}\n", trace.alarmed() ? "alarm" : "no finding",
                    trace.name, trace.judged, trace.expected, trace.story);
}

std::string limit_text(const DetectionLimit& limit) {
  if (!std::isfinite(limit.size)) return fmt::format("{} ({:.4g})", limit.statistic, limit.stated);
  return fmt::format("{:.4g} {} ({:.4g})", limit.size, limit.statistic.substr(0, 2), limit.stated);
}

// A row a point and number of layers, a column an effect.
void tell_limits(const Selftest& test, std::string& text) {
  Table table{{"point", "layers"}, {}};
  for (int e = 0; e < kEffects; ++e) table.columns.push_back(name_of(static_cast<Effect>(e)));
  std::map<std::pair<int, int>, size_t> row_of_place;
  for (const DetectionLimit& limit : test.limits) {
    const auto [found, is_new] =
        row_of_place.try_emplace({order_of(*limit.point), limit.layers}, table.rows.size());
    if (is_new) table.rows.push_back({std::string(limit.point->name), int64_t{limit.layers}});
    table.rows[found->second].push_back(limit_text(limit));
  }
  const auto good = std::ranges::count_if(test.limits, &DetectionLimit::passed);
  text += fmt::format(
      "smallest effect that is found, in ulp, by which statistic (and what must be found): {} of "
      "{} "
      "as stated\n",
      good, test.limits.size());
  text += text_of(table, "table");
}

void tell_statistics(const Selftest& test, std::string& text) {
  const auto good = std::ranges::count_if(test.statistics, &StatisticCase::passed);
  text += fmt::format("made-up kernels   {} of {} come out as they must\n", good,
                      test.statistics.size());
  for (const StatisticCase& c : test.statistics)
    if (!c.passed())
      text += fmt::format("  {}: {} was wanted, found {}\n", c.name, c.wanted, c.found);
}

void tell_power(const Selftest& test, std::string& text) {
  Table table{{"one fault or effect", "runs", "detected", "first op exact", "wanted"}, {}};
  for (const PowerRow& row : power_of(test)) {
    if (row.runs == 0) continue;
    table.rows.push_back({std::string(row.name), row.runs, bounds_text(row.detected, row.runs),
                          bounds_text(row.exact, row.runs), wanted_text(row)});
  }
  text += text_of(table, "table");
  for (const SelftestOutcome* outcome : with_one(test))
    if (!outcome->first_exact && !unseeable(*outcome))
      text += fmt::format("  missed: {}, {}: {}\n", outcome->name, effect_text(*outcome),
                          outcome->story);
}

void tell_curve(const Selftest& test, std::string& text) {
  const std::vector<PowerRow> power = power_of(test);
  Table table{{"all limits times", "clean runs alarmed"}, {}};
  for (const PowerRow& row : power)
    if (row.runs > 0) table.columns.push_back(row.name);
  for (const CurvePoint& point : curve_of(test)) {
    std::vector<Cell> cells = {point.multiplier,
                               fmt::format("{} of {}", point.alarms, test.clean.size())};
    for (size_t i = 0; i < power.size(); ++i)
      if (power[i].runs > 0)
        cells.push_back(fmt::format("{} of {}", point.detected[i], power[i].runs));
    table.rows.push_back(std::move(cells));
  }
  text += "what other limits would have found\n" + text_of(table, "table");
}

void tell_rules(const Selftest& test, std::string& text) {
  Table table{{"rule", "clean runs alarmed", "faults detected", "first op exact"}, {}};
  for (const RuleRow& row : rules_of(test))
    table.rows.push_back({row.name, fmt::format("{} of {}", row.alarms, row.clean),
                          fmt::format("{} of {}", row.detected, row.faults),
                          fmt::format("{} of {}", row.exact, row.faults)});
  text += "and other rules on the same runs\n" + text_of(table, "table");
}

void tell_several(const Selftest& test, std::string& text) {
  text += fmt::format(
      "several faults    all named in {}, wanted at least {:.0f} %\n",
      bounds_text(std::ranges::count_if(test.several, named_all), std::ssize(test.several)),
      100 * (test.quick ? kQuickSeveralNamed : kSeveralNamed));
  for (const SelftestOutcome& outcome : test.several)
    if (!named_all(outcome))
      text += fmt::format("  missed: {}, found {}\n", outcome.name, fmt::join(outcome.found, ", "));
}

Json json_of(const std::vector<CurvePoint>& curve) {
  Json list = Json::array();
  for (const CurvePoint& point : curve)
    list.push_back({{"multiplier", point.multiplier},
                    {"false_alarms", point.alarms},
                    {"detected", point.detected}});
  return list;
}

Json json_of(const std::vector<RuleRow>& rows) {
  Json list = Json::array();
  for (const RuleRow& row : rows)
    list.push_back({{"rule", row.name},
                    {"clean_runs", row.clean},
                    {"false_alarms", row.alarms},
                    {"fault_runs", row.faults},
                    {"detected", row.detected},
                    {"first_op_exact", row.exact}});
  return list;
}

Json json_of(const std::vector<StatisticCase>& cases) {
  Json list = Json::array();
  for (const StatisticCase& c : cases)
    list.push_back(
        {{"name", c.name}, {"wanted", c.wanted}, {"found", c.found}, {"passed", c.passed()}});
  return list;
}

Json json_of(const std::vector<DetectionLimit>& limits) {
  Json list = Json::array();
  for (const DetectionLimit& limit : limits)
    list.push_back({{"point", limit.point->name},
                    {"layers", limit.layers},
                    {"effect", name_of(limit.effect)},
                    {"ulp", json_number<Json>(limit.size)},
                    {"statistic", limit.statistic},
                    {"stated_ulp", limit.stated},
                    {"passed", limit.passed()}});
  return list;
}

// What these prompts and this model cannot show, and what would.
std::vector<std::string> blind_spots(const Selftest& test) {
  std::vector<std::string> blind = test.left_out;
  for (const SelftestOutcome& outcome : test.faults) {
    if (!unseeable(outcome)) continue;
    const std::string name = outcome.seeded[0].substr(0, outcome.seeded[0].find('@'));
    const auto fault = std::ranges::find(faults(), std::string_view(name), &Fault::name);
    blind.push_back(
        fmt::format("{}: it changed nothing; it needs {}", outcome.seeded[0], fault->needs));
  }
  return blind;
}

}  // namespace

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
    row.detected += outcome->verdict == "diverged" ? 1 : 0;
    row.exact += outcome->first_exact ? 1 : 0;
  }
  return rows;
}

std::vector<CurvePoint> curve_of(const Selftest& test) {
  std::vector<CurvePoint> curve;
  for (const double multiplier : {0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 4.0, 10.0}) {
    CurvePoint& point = curve.emplace_back(CurvePoint{.multiplier = multiplier});
    const auto found = [&](const SelftestOutcome& o) { return !(o.strain <= multiplier); };
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
    count(rows[0], outcome.verdict != "clean", outcome.first_exact);
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
         std::ranges::all_of(power_of(test), &PowerRow::reached) &&
         several >= (test.quick ? kQuickSeveralNamed : kSeveralNamed);
}

std::string text_of(const std::vector<Selftest>& tests) {
  std::string text;
  for (const Selftest& test : tests) {
    text += fmt::format("\n{}\n", name_of(test.dtype));
    tell_clean(test, text);
    tell_traces(test, text);
    const auto failed = std::ranges::count_if(test.controls, &Control::failed);
    text += fmt::format("must fail         {} of {} do\n", failed, test.controls.size());
    for (const Control& control : test.controls)
      if (!control.failed) text += fmt::format("  not so: {}: {}\n", control.name, control.verdict);
    tell_statistics(test, text);
    tell_limits(test, text);
    tell_several(test, text);
    tell_power(test, text);
    tell_curve(test, text);
    tell_rules(test, text);
    text += "cannot be shown here\n";
    for (const std::string& spot : blind_spots(test)) text += fmt::format("  {}\n", spot);
  }
  const auto good = std::ranges::count_if(tests, passed);
  text += fmt::format("\n{}: {} of {} dtypes do what a judge must\n",
                      good == std::ssize(tests) ? "passed" : "failed", good, tests.size());
  return text;
}

std::string json_of(const std::vector<Selftest>& tests) {
  const auto outcomes = [](const std::vector<SelftestOutcome>& all) {
    Json list = Json::array();
    for (const SelftestOutcome& o : all) {
      Json one = {{"name", o.name},     {"verdict", o.verdict}, {"story", o.story},
                  {"seeded", o.seeded}, {"found", o.found},     {"first_exact", o.first_exact}};
      if (o.effect) one["effect_ulp"] = json_number<Json>(*o.effect);
      if (o.effect) one["limit_ulp"] = json_number<Json>(o.limit);
      one["strain"] = json_number<Json>(o.strain);
      list.push_back(std::move(one));
    }
    return list;
  };
  Json json = Json::array();
  for (const Selftest& test : tests) {
    Json power = Json::array(), controls = Json::array(), traces = Json::array();
    for (const TraceCheck& trace : test.traces)
      traces.push_back({{"name", trace.name},
                        {"verdict", trace.verdict},
                        {"story", trace.story},
                        {"judged", trace.judged},
                        {"expected", trace.expected},
                        {"alarmed", trace.alarmed()}});
    for (const PowerRow& row : power_of(test))
      power.push_back({{"effect", row.name},
                       {"runs", row.runs},
                       {"detected", row.detected},
                       {"detected_at_least", clopper_pearson_lower(row.detected, row.runs)},
                       {"detected_wanted", row.least_detected},
                       {"first_op_exact", row.exact},
                       {"first_op_exact_at_least", clopper_pearson_lower(row.exact, row.runs)},
                       {"first_op_exact_wanted", row.least_exact}});
    for (const Control& c : test.controls)
      controls.push_back({{"name", c.name}, {"verdict", c.verdict}, {"failed", c.failed}});
    const auto alarms = std::ranges::count_if(test.clean, is_alarm);
    json.push_back({{"dtype", name_of(test.dtype)},
                    {"passed", passed(test)},
                    {"clean_runs", test.clean.size()},
                    {"false_alarms", alarms},
                    {"false_alarms_at_most", clopper_pearson_upper(alarms, std::ssize(test.clean))},
                    {"power", power},
                    {"curve", json_of(curve_of(test))},
                    {"rules", json_of(rules_of(test))},
                    {"controls", controls},
                    {"statistics", json_of(test.statistics)},
                    {"detection_limits", json_of(test.limits)},
                    {"traces", traces},
                    {"cannot_be_shown", blind_spots(test)},
                    {"clean", outcomes(test.clean)},
                    {"faults", outcomes(test.faults)},
                    {"effects", outcomes(test.effects)},
                    {"several", outcomes(test.several)}});
  }
  return json.dump(2) + "\n";
}

}  // namespace lockstep
