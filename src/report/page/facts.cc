// The parts of a page that are told in words and tables.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "src/judge/ledger.h"
#include "src/report/page/sections.h"

namespace lockstep {
namespace {

// How near the right places of one kind of op came to their limits.
struct Nearness {
  std::vector<std::string> points;
  double t1 = -1, t2 = -1;  // shares of the limits; -1: none was made
  Place nearest;
  int wrong = 0;
};

// By kind of op, the nearest of its right places. Wrong ones are counted apart: their bars would be
// full and say nothing.
std::map<OpKind, Nearness> nearness_of(const Result& result) {
  const std::vector<bool> wrong = wrong_places(result);
  std::map<OpKind, Nearness> all;
  for (size_t i = 0; i < result.places.size(); ++i) {
    const PlaceSummary& p = result.places[i];
    const Point& point = *p.place.point;
    // An op that is exact has no limit to come near.
    if (point.node_class == NodeClass::exact || !p.measured) continue;
    Nearness& of = all[point.op];
    if (std::ranges::find(of.points, point.name) == of.points.end())
      of.points.emplace_back(point.name);
    if (wrong[i]) {
      ++of.wrong;
      continue;
    }
    if (std::max(p.worst_t1, p.worst_t2) > std::max(of.t1, of.t2)) of.nearest = p.place;
    of.t1 = std::max(of.t1, p.worst_t1);
    if (p.has_t2) of.t2 = std::max(of.t2, p.worst_t2);
  }
  return all;
}

// Two bars from 0 to the limit.
void write_bars(Html& html, const Nearness& near) {
  const auto svg = html.open(
      "svg", {{"viewBox", "0 0 100 20"}, {"preserveAspectRatio", "none"}, {"aria-hidden", "true"}});
  const auto bar = [&](const char* kind, int top, double share) {
    // NaN is not greater either, and draws nothing.
    if (!(share > 0)) return;
    // A bar that is over its limit has its full width and another colour.
    html.single("rect", {{"class", share <= 1 ? kind : "over"},
                         {"x", "0"},
                         {"y", std::to_string(top)},
                         {"width", fmt::format("{:.1f}", 100 * std::min(share, 1.0))},
                         {"height", "7"}});
  };
  html.single("rect",
              {{"class", "rail"}, {"x", "0"}, {"y", "2"}, {"width", "100"}, {"height", "16"}});
  bar("t1", 2, near.t1);
  bar("t2", 11, near.t2);
}

void write_list(Html& html, std::string_view heading, const std::vector<std::string>& items) {
  if (items.empty()) return;
  html.leaf("h3", heading);
  const auto list = html.open("ul", {{"class", "plain"}});
  for (const std::string& item : items) html.leaf("li", item);
}

void write_facts(Html& html, const std::map<std::string, std::string>& facts) {
  const auto list = html.open("dl", {{"class", "facts"}});
  for (const auto& [name, value] : facts) {
    html.leaf("dt", name);
    html.leaf("dd", value.empty() ? "–" : value);
  }
}

// The scope of the verdict, as sentences: a clean run is clean within these bounds alone.
std::vector<std::string> scope_of(const Result& result) {
  const Scope& s = result.scope;
  std::vector<std::string> lines = {
      fmt::format("{} layers{}", s.layers,
                  s.selection.empty() ? ", all points" : ", selected: " + s.selection),
      fmt::format("{} request{}, positions to {}", s.requests, s.requests == 1 ? "" : "s",
                  s.positions - 1)};
  if (!s.rows.all()) lines.push_back(fmt::format("{}; {}", text_of(s.rows), power_text(s.rows)));
  if (s.largest > 0)
    lines.push_back(fmt::format("numbers up to {} in size", short_number(s.largest)));
  std::map<std::string, std::vector<std::string>> by_contract;
  for (const auto& [point, contract] : s.contracts) by_contract[contract].push_back(point);
  for (const auto& [contract, points] : by_contract)
    lines.push_back(fmt::format("rounds as {}: {}", contract, fmt::join(points, ", ")));
  if (!s.found.empty())
    lines.push_back(
        fmt::format("contracts that were found, not declared: {}", fmt::join(s.found, ", ")));
  return lines;
}

}  // namespace

void write_nearness(Html& html, const Result& result) {
  const std::map<OpKind, Nearness> all = nearness_of(result);
  if (all.empty()) return;
  const Part part(
      html, "nearness", "How near each kind of op came to its limit",
      "The nearest of its right places; the end of a bar's ground is the limit. A right "
      "engine comes near: of many elements one always does.");
  const auto table = html.open("table", {{"class", "near"}});
  for (const auto& [op, near] : all) {
    const auto row = html.open("tr", {{"title", fmt::format("{}", fmt::join(near.points, ", "))}});
    html.leaf("th", name_of(op), {{"scope", "row"}});
    {
      const auto cell = html.open("td");
      write_bars(html, near);
    }
    const auto says = html.open("td", {{"class", "says"}});
    if (near.t1 >= 0)
      html.text(fmt::format("T1 {}, T2 {}, {}", short_number(near.t1),
                            short_number(near.t2, near.t2 >= 0), text_of(near.nearest)));
    if (near.wrong > 0) {
      if (near.t1 >= 0) html.text("; ");
      html.text(fmt::format("{} wrong, not counted", near.wrong));
    }
  }
}

void write_untested(Html& html, const Result& result) {
  const Part part(html, "untested", "What this run does not show");
  write_list(html, "Untested: no request of this run reaches it", result.blind);
  write_list(html, "Taken for granted", result.scope.given);
  write_list(html, "What the verdict is about", scope_of(result));
  write_list(html, "Notes", result.notes);
}

// Folded, for it has a row an op.
void write_places(Html& html, const Result& result) {
  if (result.places.empty()) return;
  const Part part(html, "places", "All ops",
                  "T1: the worst element, in budgets. T2: the root mean square, in units of its "
                  "limit. # is what was not measured. The choice above the map applies here too.");
  const auto folded = html.open("details");
  html.leaf("summary", fmt::format("{} ops, every number", result.places.size()));
  const auto scroll = html.open("div", {{"class", "scroll"}, {"tabindex", "0"}});
  const auto table = html.open("table", {{"class", "list"}});
  {
    const auto head = html.open("thead");
    const auto row = html.open("tr");
    for (const char* name : {"op", "verdict"}) html.leaf("th", name, {{"scope", "col"}});
    for (const char* name : {"nodes", "T1", "T2", "introduced rms", "propagated rms", "total rms",
                             "not finite", "worst: request", "position", "pass"})
      html.leaf("th", name, {{"scope", "col"}, {"class", "n"}});
  }
  const auto body = html.open("tbody");
  for (size_t i = 0; i < result.places.size(); ++i) {
    const PlaceSummary& p = result.places[i];
    const Mark& mark = mark_of(result, p);
    const auto row =
        html.open("tr", {{"id", row_id(i)}, {"class", fmt::format("v-{}", mark.name)}});
    html.leaf("td", text_of(p.place), {{"class", "mono"}});
    html.leaf("td", fmt::format("{} {}{}", mark.glyph, mark.says,
                                p.ancestor.empty() ? "" : ", from " + p.ancestor));
    const bool measured = p.measured, compared = p.compared;
    for (const std::string& number :
         {fmt::format("{}/{}", p.judged, p.expected), short_number(p.worst_t1, measured),
          short_number(p.worst_t2, p.has_t2), short_number(p.introduced_rms, measured),
          short_number(p.propagated_rms, compared), short_number(p.total_rms, compared),
          std::to_string(p.excluded), std::to_string(p.worst_request),
          std::to_string(p.worst_position), std::to_string(p.worst_pass)})
      html.leaf("td", number, {{"class", "n"}});
  }
}

void write_origin(Html& html, const Result& result) {
  const Part part(html, "origin", "Where this comes from");
  write_facts(html, result.provenance);
  if (result.limits.empty()) return;
  const auto folded = html.open("details");
  html.leaf("summary", "The limits");
  std::map<std::string, std::string> limits;
  for (const auto& [name, value] : result.limits) limits[name] = short_number(value);
  write_facts(html, limits);
}

// Cells keep the number format of the text report.
void write_table(Html& html, const Table& table, std::string_view kind) {
  const auto scroll = html.open("div", {{"class", "scroll"}, {"tabindex", "0"}});
  const auto list = html.open("table", {{"class", fmt::format("list {}", kind)}});
  if (!table.title.empty()) html.leaf("caption", table.title);
  {
    const auto head = html.open("thead");
    const auto row = html.open("tr");
    for (size_t c = 0; c < table.columns.size(); ++c)
      html.leaf("th", table.columns[c].name,
                {{"scope", "col"}, {"class", table.is_right_aligned(c) ? "n" : ""}});
  }
  const auto body = html.open("tbody");
  for (const auto& cells : table.rows) {
    const auto row = html.open("tr");
    for (size_t c = 0; c < cells.size(); ++c) {
      std::string text;
      if (const auto* words = std::get_if<std::string>(&cells[c]))
        text = *words;
      else if (const auto* whole = std::get_if<int64_t>(&cells[c]))
        text = std::to_string(*whole);
      else if (const double x = std::get<double>(cells[c]); std::isfinite(x))
        text = fmt::format(fmt::runtime(table.number_format), x);
      else
        text = short_number(x);
      html.leaf("td", text, {{"class", table.is_right_aligned(c) ? "n" : ""}});
    }
  }
}

}  // namespace lockstep
