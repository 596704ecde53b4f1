// The ops that are wrong: where their errors lie, how large they are, and the ten worst.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "src/judge/error_map.h"
#include "src/judge/ledger.h"
#include "src/judge/story.h"
#include "src/report/page/sections.h"
#include "src/report/result_entries.h"

namespace lockstep {
namespace {

// Ops that are drawn; the findings of later ones are listed, and their numbers are in the table.
constexpr size_t kMostDrawn = 12;

// The colours of errors, in budgets: up to and including each bound.
struct Band {
  double most;
  const char* says;
};
constexpr std::array kBands = {Band{0.5, "to 1/2"},    Band{1, "to 1, within"},
                               Band{2, "to 2"},        Band{8, "to 8"},
                               Band{100, "to 100"},    Band{1e4, "to 10 000"},
                               Band{HUGE_VAL, "more"}, Band{HUGE_VAL, "not finite"}};

size_t band_of(double budgets) {
  // An error that is not finite is handed over as Inf budgets.
  if (std::isinf(budgets)) return kBands.size() - 1;
  size_t band = 0;
  while (budgets > kBands.at(band).most) ++band;
  return band;
}

// extent 0: nobody knows where the last bucket ends.
std::string range_of(const ErrorProfile::Buckets& buckets, size_t i, int64_t extent) {
  const int64_t first = i * buckets.width;
  const int64_t last = std::min(first + buckets.width, extent > 0 ? extent : INT64_MAX) - 1;
  return first == last ? std::to_string(first) : fmt::format("{}-{}", first, last);
}

// One column of the map as a strip over positions: neighbours of one colour are one rectangle.
void write_strip(Html& html, const ErrorProfile& errors, size_t column) {
  const size_t positions = errors.positions.largest.size(), stride = errors.columns.largest.size();
  // NaN: nothing was looked at there.
  const auto at = [&](size_t p) { return errors.map.at(p * stride + column); };
  std::array<std::string, kBands.size()> paths;
  for (size_t p = 0; p < positions;) {
    if (std::isnan(at(p))) {
      ++p;
      continue;
    }
    const size_t band = band_of(at(p));
    size_t end = p;
    while (end < positions && !std::isnan(at(end)) && band_of(at(end)) == band) ++end;
    // One path a colour, so that a strip has eight elements at most, however many positions.
    paths.at(band) += fmt::format("M{} 0h{}v1h-{}z", p, end - p, end - p);
    p = end;
  }
  const auto svg = html.open("svg", {{"viewBox", fmt::format("0 0 {} 1", positions)},
                                     {"preserveAspectRatio", "none"},
                                     {"aria-hidden", "true"},
                                     {"shape-rendering", "crispEdges"}});
  for (size_t band = 0; band < paths.size(); ++band)
    if (!paths.at(band).empty())
      html.single("path", {{"class", fmt::format("b{}", band)}, {"d", paths.at(band)}});
}

void write_scale(Html& html) {
  const auto list = html.open("ul", {{"class", "scale"}});
  for (size_t band = 0; band < kBands.size(); ++band) {
    const auto item = html.open("li");
    {
      const auto svg = html.open("svg", {{"viewBox", "0 0 1 1"}, {"aria-hidden", "true"}});
      html.single("path", {{"class", fmt::format("b{}", band)}, {"d", "M0 0h1v1h-1z"}});
    }
    html.text(kBands.at(band).says);
  }
}

std::string axis_of(const PlaceSummary& place) {
  const std::vector<std::string> axes = axis_names(*place.place.point);
  return axes.empty() ? "element" : axes.front();
}

void write_where(Html& html, const PlaceSummary& place) {
  const ErrorProfile& errors = place.errors;
  const auto figure = html.open("figure");
  const std::string axis = axis_of(place);
  html.leaf("h4", fmt::format("Largest error by position and {}, in budgets", axis));
  const size_t rows = errors.columns.largest.size();
  {
    const auto table = html.open("table", {{"class", "strips"},
                                           {"style", rows <= 8    ? "--strip:20px"
                                                     : rows <= 20 ? "--strip:13px"
                                                                  : "--strip:7px"}});
    // Many rows are too low for words: their names and numbers are in their tips.
    for (size_t c = 0; c < rows; ++c) {
      const std::string name =
          fmt::format("{} {}", axis, range_of(errors.columns, c, errors.row_shape.front()));
      const std::string largest = short_number(errors.columns.largest[c]);
      const auto row = html.open("tr", {{"title", fmt::format("{}: {} budgets", name, largest)}});
      const bool named = rows <= 20;
      html.leaf("th", named ? name : "", {{"scope", "row"}});
      {
        const auto cell = html.open("td");
        if (!errors.map.empty()) write_strip(html, errors, c);
      }
      html.leaf("td", named ? largest : "", {{"class", "max"}});
    }
    const auto foot = html.open("tr");
    html.leaf("th",
              rows <= 20 ? "position" : fmt::format("{} 0-{}", axis, errors.row_shape.front() - 1),
              {{"scope", "row"}});
    {
      const auto cell = html.open("td");
      const auto ticks = html.open("div", {{"class", "ticks"}});
      html.leaf("span", "0");
      html.leaf("span",
                fmt::format("position {}",
                            range_of(errors.positions, errors.positions.largest.size() - 1, 0)));
    }
    html.leaf("td", "largest", {{"class", "max"}});
  }
  write_scale(html);
  html.leaf("figcaption",
            fmt::format("{} rows, {} elements. Blank: no row there was looked at, for none has an "
                        "element over its budget.",
                        errors.rows, errors.elements));
}

std::string power_text(int exponent) {
  return exponent >= -3 && exponent <= 6 ? short_number(std::ldexp(1, exponent))
                                         : fmt::format("2^{}", exponent);
}

void write_sizes(Html& html, const ErrorProfile& errors) {
  const auto& bins = errors.histogram;
  // The bins that are drawn. Bin 17 begins at the budget: some bins on both sides are always shown,
  // so that the line of the budget stands in the picture.
  int first = 14, end = 20;
  for (int bin = 0; bin < std::ssize(bins); ++bin)
    if (bins[bin] > 0) first = std::min(first, bin), end = std::max(end, bin + 1);
  const int64_t most = std::max<int64_t>(1, std::ranges::max(bins));
  const auto figure = html.open("figure");
  html.leaf("h4", "How large the errors are");
  const auto chart = html.open("div", {{"class", "bars"}});
  {
    const auto svg = html.open("svg", {{"viewBox", fmt::format("0 0 {} 100", end - first)},
                                       {"preserveAspectRatio", "none"},
                                       {"role", "img"},
                                       {"aria-label", "Histogram of errors in budgets"}});
    for (int bin = first; bin < end; ++bin) {
      if (bins[bin] == 0) continue;
      // On a logarithmic scale one element would have no height: 12 of 100 are for that.
      const double high = 12 + 88 * std::log10(bins[bin]) / std::max(1.0, std::log10(most));
      const int upper = bin + ErrorProfile::kFirstExponent;
      const auto bar =
          html.open("path", {{"class", bin > 16 ? "bar over" : "bar"},
                             {"d", fmt::format("M{:.2f} 100v-{:.1f}h.84v{:.1f}z", bin - first + .08,
                                               std::min(high, 100.0), std::min(high, 100.0))}});
      html.leaf("title",
                fmt::format("{} to {} budgets: {} elements", bin == 0 ? "0" : power_text(upper - 1),
                            power_text(upper), bins[bin]));
    }
    html.single("path", {{"class", "limit"}, {"d", fmt::format("M{} 0V100", 17 - first)}});
  }
  {
    const auto ticks = html.open("div", {{"class", "ticks"}});
    const auto tick = [&](int bin, const std::string& text) {
      html.leaf("span", text,
                {{"style", fmt::format("left:{:.1f}%", 100.0 * (bin - first) / (end - first))}});
    };
    // A label each 16 times in size, or 256 times where there is no room.
    const int step = end - first > 24 ? 8 : 4;
    for (int bin = first; bin < end; ++bin) {
      const bool at_budget = bin == 17;
      const bool apart = (bin - 17) % step == 0;
      if (at_budget || (apart && bin > first))
        tick(bin, at_budget ? "the budget" : power_text(bin - 17));
    }
  }
  html.leaf(
      "figcaption",
      fmt::format(
          "Elements by error over budget, both on logarithmic scales; red is over the "
          "budget.{}",
          errors.nonfinite > 0 ? fmt::format(" {} more are not finite.", errors.nonfinite) : ""));
}

void write_worst(Html& html, const PlaceSummary& place) {
  const std::vector<std::string> axes = axis_names(*place.place.point);
  Table table{{"request", "pass", "position"}, {}, "{:.6g}"};
  // The axes within a row; the row itself is told by request, pass and position.
  const size_t inner = place.errors.row_shape.size();
  for (size_t a = 0; a < inner; ++a)
    table.columns.emplace_back(a < axes.size() ? axes[a] : "element");
  for (const char* name : {"want", "got", "budgets"}) table.columns.emplace_back(name);
  for (const ErrorProfile::WorstElement& e : place.errors.worst) {
    std::vector<Cell>& row =
        table.rows.emplace_back(std::vector<Cell>{int64_t{e.request}, int64_t{e.pass}});
    for (const int64_t i : e.index) row.emplace_back(i);
    row.insert(row.end(), {e.want, e.got, short_number(e.budgets)});
  }
  table.columns.back().align = Table::Align::right;
  html.leaf("h4", fmt::format("The {} worst elements", place.errors.worst.size()));
  write_table(html, table, "tight");
}

const Confirmation* confirmation_of(const Result& result, const Place& place) {
  const auto found = std::ranges::find(result.confirmations, place, &Confirmation::place);
  return found == result.confirmations.end() ? nullptr : &*found;
}

void write_wrong_op(Html& html, const Result& result, size_t i, bool drawn) {
  const PlaceSummary& place = result.places[i];
  const auto here = [&](const Finding& f) { return f.node.place == place.place; };
  const auto finding = std::ranges::find_if(result.findings, here);
  const auto article = html.open("article", {{"class", "wrong"}, {"id", part_id(i)}});
  const Mark& mark = mark_of(place.verdict);
  {
    const auto heading = html.open("h3");
    html.leaf("span", mark.glyph,
              {{"class", fmt::format("chip {}", mark.name)}, {"aria-hidden", "true"}});
    html.leaf("span", text_of(place.place), {{"class", "mono"}});
    html.leaf("span",
              fmt::format("{}, {} of {} nodes", name_of(place.verdict),
                          std::ranges::count_if(result.findings, here), place.expected),
              {{"class", "soft"}});
  }
  html.leaf("p", text_of(*finding), {{"class", "rule"}});
  if (!place.looks_like.empty()) html.leaf("p", "looks like " + text_of(place.looks_like));
  if (const Confirmation* c = confirmation_of(result, place.place)) html.leaf("p", c->says);
  if (place.errors.elements == 0) {
    html.leaf("p", "Where its errors lie was not measured: no element of these findings is known.",
              {{"class", "soft"}});
    return;
  }
  if (!drawn) return;
  {
    const auto two = html.open("div", {{"class", "two"}});
    write_where(html, place);
    write_sizes(html, place.errors);
  }
  write_worst(html, place);
}

}  // namespace

void write_wrong_ops(Html& html, const Result& result) {
  const std::vector<bool> wrong = wrong_places(result);
  const auto count = std::ranges::count(wrong, true);
  if (count == 0) return;
  const FoundOps found = count_found_ops(result);
  const char* what = found.missing == 0 ? "wrong"
                     : found.wrong == 0 ? "missing"
                                        : "wrong or missing";
  const Part part(html, "wrong",
                  count == 1 ? fmt::format("The op that is {}", what)
                             : fmt::format("The {} ops that are {}", count, what),
                  "In the order of the computation. An error is counted in budgets: what one "
                  "rounding of the op's own result and its accumulation allow that element.");
  size_t drawn = 0;
  for (size_t i = 0; i < result.places.size(); ++i)
    if (wrong[i]) write_wrong_op(html, result, i, drawn++ < kMostDrawn);
}

}  // namespace lockstep
