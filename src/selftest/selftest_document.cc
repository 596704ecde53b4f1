// A selftest as people read it, a section a dtype: false alarms, traces of others, controls,
// statistics, limits of detection, several faults at once, the table of power, the curve over all
// limits, and other rules on the same runs; below it what cannot be shown here. The data, for
// programs, has a row a run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "src/faults/faults.h"
#include "src/selftest/selftest_report.h"
#include "src/stats/moments.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;
using Blocks = std::vector<Block>;

std::string effect_text(const Selftest::Outcome& outcome) {
  return outcome.effect ? fmt::format("{:.3g} ulp, {:.3g} of its limit", *outcome.effect,
                                      *outcome.effect / outcome.limit)
                        : "exact or wrong";
}

std::string bounds_text(int64_t k, int64_t n) {
  return fmt::format("{} of {} ({:.1f} %, at least {:.1f} %)", k, n, 100 * fraction(k, n),
                     100 * clopper_pearson_lower(k, n));
}

std::string wanted_text(const Selftest::PowerRow& row) {
  if (row.least_detected == 0) return row.reached() ? "" : "no";
  return fmt::format("at least {:.0f} and {:.0f} %{}", 100 * row.least_detected,
                     100 * row.least_exact, row.reached() ? "" : ": no");
}

// A share is told with its bound, since few runs claim little.
void add_clean(const Selftest& test, Blocks& blocks) {
  const auto n = std::ssize(test.clean);
  const auto alarms = std::ranges::count_if(test.clean, &Selftest::Outcome::is_alarm);
  List list{.title = fmt::format("false alarms      {} of {} clean runs (at most {:.2f} %)", alarms,
                                 n, 100 * clopper_pearson_upper(alarms, n))};
  for (const Selftest::Outcome& outcome : test.clean)
    if (outcome.is_alarm())
      list.items.push_back(fmt::format("alarm: {}: {}", outcome.name, outcome.story));
  blocks.push_back(std::move(list));
}

void add_traces(const Selftest& test, Blocks& blocks) {
  for (const TraceCheck& trace : test.traces)
    blocks.push_back(Paragraph{fmt::format("{}: {}: {} of {} nodes judged, {}",
                                           trace.alarmed() ? "alarm" : "no finding", trace.name,
                                           trace.judged, trace.expected, trace.story)});
}

void add_controls(const Selftest& test, Blocks& blocks) {
  List list{.title = fmt::format("must fail         {} of {} do",
                                 std::ranges::count_if(test.controls, &Control::failed),
                                 test.controls.size())};
  for (const Control& control : test.controls)
    if (!control.failed)
      list.items.push_back(fmt::format("not so: {}: {}", control.name, name_of(control.verdict)));
  blocks.push_back(std::move(list));
}

void add_statistics(const Selftest& test, Blocks& blocks) {
  List list{.title = fmt::format("made-up kernels   {} of {} come out as they must",
                                 std::ranges::count_if(test.statistics, &StatisticCase::passed),
                                 test.statistics.size())};
  for (const StatisticCase& c : test.statistics)
    if (!c.passed())
      list.items.push_back(fmt::format("{}: {} was wanted, found {}", c.name, c.wanted, c.found));
  blocks.push_back(std::move(list));
}

std::string limit_text(const Detection::Limit& limit) {
  if (!std::isfinite(limit.size)) return fmt::format("{} ({:.4g})", limit.statistic, limit.stated);
  return fmt::format("{:.4g} {} ({:.4g})", limit.size,
                     limit.kind ? name_of(*limit.kind) : limit.statistic, limit.stated);
}

// A row a point and number of layers, a column an effect.
void add_limits(const Selftest& test, Blocks& blocks) {
  Table table{{"point", "layers"}, {}};
  for (const Detection::Effect effect : values_of<Detection::Effect>())
    table.columns.push_back(name_of(effect));
  std::map<std::pair<int, int>, size_t> row_of_place;
  for (const Detection::Limit& limit : test.limits) {
    const auto [found, is_new] =
        row_of_place.try_emplace({limit.point->order(), limit.layers}, table.rows.size());
    if (is_new) {
      table.rows.push_back({std::string(limit.point->name), int64_t{limit.layers}});
      table.rows.back().resize(table.columns.size());  // not every effect was put in every place
    }
    table.rows[found->second][2 + static_cast<size_t>(limit.effect)] = limit_text(limit);
  }
  table.title = fmt::format(
      "smallest effect that is found, in ulp, by which statistic (and what must be found): {} of "
      "{} as stated",
      std::ranges::count_if(test.limits, &Detection::Limit::passed), test.limits.size());
  blocks.push_back(std::move(table));
}

void add_several(const Selftest& test, Blocks& blocks) {
  List list{.title = fmt::format(
                "several faults    all named in {}, wanted at least {:.0f} %",
                bounds_text(std::ranges::count_if(test.several, &Selftest::Outcome::named_all),
                            std::ssize(test.several)),
                100 * test.least_named())};
  for (const Selftest::Outcome& outcome : test.several)
    if (!outcome.named_all())
      list.items.push_back(
          fmt::format("missed: {}, found {}", outcome.name, fmt::join(outcome.found, ", ")));
  blocks.push_back(std::move(list));
}

void add_power(const Selftest& test, Blocks& blocks) {
  Table table{{"one fault or effect", "runs", "detected", "first op exact", "wanted"}, {}};
  for (const Selftest::PowerRow& row : test.power()) {
    if (row.runs == 0) continue;
    table.rows.push_back({std::string(row.name), row.runs, bounds_text(row.detected, row.runs),
                          bounds_text(row.exact, row.runs), wanted_text(row)});
  }
  blocks.push_back(std::move(table));
  List missed;
  for (const Selftest::Outcome* outcome : test.with_one())
    if (!outcome->first_exact && !outcome->is_unseeable())
      missed.items.push_back(
          fmt::format("missed: {}, {}: {}", outcome->name, effect_text(*outcome), outcome->story));
  blocks.push_back(std::move(missed));
}

void add_curve(const Selftest& test, Blocks& blocks) {
  const std::vector<Selftest::PowerRow> power = test.power();
  Table table{.columns = {"all limits times", "clean runs alarmed"},
              .title = "what other limits would have found"};
  for (const Selftest::PowerRow& row : power)
    if (row.runs > 0) table.columns.push_back(row.name);
  for (const Selftest::CurvePoint& point : test.curve()) {
    std::vector<Cell> cells = {point.multiplier,
                               fmt::format("{} of {}", point.alarms, test.clean.size())};
    for (size_t i = 0; i < power.size(); ++i)
      if (power[i].runs > 0)
        cells.push_back(fmt::format("{} of {}", point.detected[i], power[i].runs));
    table.rows.push_back(std::move(cells));
  }
  blocks.push_back(std::move(table));
}

void add_rules(const Selftest& test, Blocks& blocks) {
  Table table{.columns = {"rule", "clean runs alarmed", "faults detected", "first op exact"},
              .title = "and other rules on the same runs"};
  for (const Selftest::RuleRow& row : test.rules())
    table.rows.push_back({row.name, fmt::format("{} of {}", row.alarms, row.clean),
                          fmt::format("{} of {}", row.detected, row.faults),
                          fmt::format("{} of {}", row.exact, row.faults)});
  blocks.push_back(std::move(table));
}

// The faults that these prompts and this model cannot show, and what would.
std::vector<std::string> blind_spots(const Selftest& test) {
  std::vector<std::string> blind = test.left_out;
  for (const Selftest::Outcome& outcome : test.faults) {
    if (!outcome.is_unseeable()) continue;
    const std::string name = outcome.seeded[0].substr(0, outcome.seeded[0].find('@'));
    const auto fault = std::ranges::find(faults(), std::string_view(name), &Fault::name);
    blind.push_back(
        fmt::format("{}: it changed nothing; it needs {}", outcome.seeded[0], fault->needs));
  }
  return blind;
}

Blocks blocks_of(const std::vector<Selftest>& tests) {
  Blocks blocks;
  for (const Selftest& test : tests) {
    blocks.push_back(Heading{std::string(name_of(test.dtype))});
    for (const auto add : {add_clean, add_traces, add_controls, add_statistics, add_limits,
                           add_several, add_power, add_curve, add_rules})
      add(test, blocks);
    blocks.push_back(List{blind_spots(test), "cannot be shown here"});
  }
  const auto good = std::ranges::count_if(tests, &Selftest::passed);
  blocks.push_back(Heading{});
  blocks.push_back(
      Conclusion{good == std::ssize(tests) ? "passed" : "failed",
                 fmt::format("{} of {} dtypes do what a judge must", good, tests.size())});
  return blocks;
}

// A row a run.
Table data_of(const std::vector<Selftest>& tests) {
  Table table{
      {"dtype", "kind", "name", "verdict", "first_exact", "effect_ulp", "limit_ulp", "limit_ratio"},
      {}};
  const auto add = [&](const Selftest& test, const char* kind,
                       const std::vector<Selftest::Outcome>& outcomes) {
    for (const Selftest::Outcome& o : outcomes)
      table.rows.push_back({std::string(name_of(test.dtype)), kind, o.name, name_of(o.verdict),
                            int64_t{o.first_exact}, o.effect ? Cell(*o.effect) : Cell(""),
                            o.effect ? Cell(o.limit) : Cell(""), o.limit_ratio});
  };
  for (const Selftest& test : tests) {
    add(test, "clean", test.clean);
    add(test, "fault", test.faults);
    add(test, "effect", test.effects);
    add(test, "several", test.several);
  }
  return table;
}

Json number(double x) { return json_number<Json>(x); }

Json json_of(const Selftest::CurvePoint& point) {
  return {{"multiplier", number(point.multiplier)},
          {"false_alarms", point.alarms},
          {"detected", point.detected}};
}

Json json_of(const Selftest::RuleRow& row) {
  return {{"rule", row.name},         {"clean_runs", row.clean},  {"false_alarms", row.alarms},
          {"fault_runs", row.faults}, {"detected", row.detected}, {"first_op_exact", row.exact}};
}

Json json_of(const StatisticCase& c) {
  return {{"name", c.name}, {"wanted", c.wanted}, {"found", c.found}, {"passed", c.passed()}};
}

Json json_of(const Detection::Limit& limit) {
  return {{"point", limit.point->name},      {"layers", limit.layers},
          {"effect", name_of(limit.effect)}, {"ulp", number(limit.size)},
          {"statistic", limit.statistic},    {"stated_ulp", number(limit.stated)},
          {"passed", limit.passed()}};
}

Json json_of(const TraceCheck& trace) {
  return {{"name", trace.name},         {"verdict", name_of(trace.verdict)},
          {"story", trace.story},       {"judged", trace.judged},
          {"expected", trace.expected}, {"alarmed", trace.alarmed()}};
}

Json json_of(const Control& c) {
  return {{"name", c.name}, {"verdict", name_of(c.verdict)}, {"failed", c.failed}};
}

Json json_of(const Selftest::PowerRow& row) {
  return {{"effect", row.name},
          {"runs", row.runs},
          {"detected", row.detected},
          {"detected_at_least", number(clopper_pearson_lower(row.detected, row.runs))},
          {"detected_wanted", number(row.least_detected)},
          {"first_op_exact", row.exact},
          {"first_op_exact_at_least", number(clopper_pearson_lower(row.exact, row.runs))},
          {"first_op_exact_wanted", number(row.least_exact)}};
}

Json json_of(const Selftest::Outcome& o) {
  Json json = {{"name", o.name},   {"verdict", name_of(o.verdict)},
               {"story", o.story}, {"seeded", o.seeded},
               {"found", o.found}, {"first_exact", o.first_exact}};
  if (o.effect) json["effect_ulp"] = number(*o.effect);
  if (o.effect) json["limit_ulp"] = number(o.limit);
  json["limit_ratio"] = number(o.limit_ratio);
  return json;
}

template <typename Item>
Json list_of(const std::vector<Item>& items) {
  Json list = Json::array();
  for (const Item& item : items) list.push_back(json_of(item));
  return list;
}

Json json_of(const Selftest& test) {
  const auto alarms = std::ranges::count_if(test.clean, &Selftest::Outcome::is_alarm);
  const double most = clopper_pearson_upper(alarms, std::ssize(test.clean));
  return {{"dtype", name_of(test.dtype)},
          {"passed", test.passed()},
          {"clean_runs", test.clean.size()},
          {"false_alarms", alarms},
          {"false_alarms_at_most", number(most)},
          {"power", list_of(test.power())},
          {"curve", list_of(test.curve())},
          {"rules", list_of(test.rules())},
          {"controls", list_of(test.controls)},
          {"statistics", list_of(test.statistics)},
          {"detection_limits", list_of(test.limits)},
          {"traces", list_of(test.traces)},
          {"cannot_be_shown", blind_spots(test)},
          {"clean", list_of(test.clean)},
          {"faults", list_of(test.faults)},
          {"effects", list_of(test.effects)},
          {"several", list_of(test.several)}};
}

}  // namespace

Document document_of(const std::vector<Selftest>& tests) {
  Json list = Json::array();
  for (const Selftest& test : tests) list.push_back(json_of(test));
  return {.blocks = blocks_of(tests),
          .data = data_of(tests),
          .json = list.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"};
}

}  // namespace lockstep
