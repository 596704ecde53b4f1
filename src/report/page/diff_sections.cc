// The parts of a page of two traces.
#include <fmt/format.h>

#include <algorithm>

#include "src/judge/ledger.h"
#include "src/report/page/sections.h"

namespace lockstep {
namespace {

bool is_first(const std::optional<DiffNode>& first, const Place& place) {
  return first && first->id.place == place;
}

// One bit-equal place, one whose rows differ and by how much, one that differs and has no numbers.
Mark mark_of(const DiffPlace& p) {
  if (p.equal == p.rows) return {"bitwise", "=", "equal bits"};
  if (p.measured == 0) return {"inconclusive", "#", "other bits, no numbers"};
  return {p.ulps <= 1 ? "rounding" : "propagated differs", p.ulps <= 1 ? "·" : "≠", "other bits"};
}

std::string line_of(const DiffPlace& p) {
  std::string line = fmt::format("{}: {}; {} of {} rows equal", text_of(p.place), mark_of(p).says,
                                 p.equal, p.rows);
  if (p.measured > 0)
    line += fmt::format("; difference rms {}, {} ulp, of values of rms {}",
                        short_number(p.difference_rms), short_number(p.ulps), short_number(p.rms));
  return line;
}

}  // namespace

void write_map(Html& html, const DiffResult& result) {
  if (result.places.empty()) return;
  const Part part(html, "map", "Every op of every layer",
                  "One cell an op: = equal bits in both traces, · other bits within an ulp on "
                  "average, ≠ further apart, # other bits and no numbers that say how far.");
  std::vector<MapCell> cells;
  const std::optional<DiffNode>& first = result.first_kind ? result.first_kind : result.first_bits;
  for (size_t i = 0; i < result.places.size(); ++i) {
    const DiffPlace& p = result.places[i];
    const Mark mark = mark_of(p);
    cells.push_back({.place = p.place,
                     .kind = std::string(mark.name),
                     .glyph = std::string(mark.glyph),
                     .line = line_of(p),
                     .link = row_id(i),
                     .first = is_first(first, p.place)});
  }
  const auto of = [&](std::string_view kind) {
    return static_cast<size_t>(std::ranges::count(cells, kind, &MapCell::kind));
  };
  std::vector<FilterChoice> choices = {
      {"f-wrong", "propagated", "≠", "further apart", of("propagated differs")},
      {"f-rounding", "rounding", "·", "within an ulp", of("rounding")},
      {"f-bitwise", "bitwise", "=", "equal bits", of("bitwise")},
      {"f-inconclusive", "inconclusive", "#", "no numbers", of("inconclusive")}};
  std::erase_if(choices, [](const FilterChoice& c) { return c.cells == 0; });
  write_place_map(html, cells, choices);
}

void write_places(Html& html, const DiffResult& result) {
  if (!result.structure.empty()) {
    const Part part(html, "structure", "What makes them no runs of the same thing");
    const auto list = html.open("ul", {{"class", "plain"}});
    for (const std::string& sentence : result.structure) html.leaf("li", sentence);
  }
  if (!result.judged.empty()) {
    const Part part(html, "judged", "Each against the exact results");
    const auto list = html.open("ul", {{"class", "plain"}});
    for (const DiffJudgement& j : result.judged)
      html.leaf("li", fmt::format("{} is {}: {}", j.trace, name_of(j.verdict), j.story));
  }
  if (result.places.empty()) return;
  const Part part(html, "places", "All ops");
  const auto scroll = html.open("div", {{"class", "scroll"}, {"tabindex", "0"}});
  const auto table = html.open("table", {{"class", "list"}});
  {
    const auto head = html.open("thead");
    const auto row = html.open("tr");
    html.leaf("th", "op", {{"scope", "col"}});
    for (const char* name : {"equal rows", "elements measured", "difference rms", "rms", "ulp"})
      html.leaf("th", name, {{"scope", "col"}, {"class", "n"}});
  }
  const auto body = html.open("tbody");
  for (size_t i = 0; i < result.places.size(); ++i) {
    const DiffPlace& p = result.places[i];
    const auto row = html.open("tr", {{"id", row_id(i)},
                                      {"class", p.equal == p.rows ? "v-bitwise"
                                                : p.measured == 0 ? "v-inconclusive"
                                                : p.ulps <= 1     ? "v-rounding"
                                                                  : "v-differs"}});
    html.leaf("td", text_of(p.place), {{"class", "mono"}});
    for (const std::string& number :
         {fmt::format("{}/{}", p.equal, p.rows), std::to_string(p.measured),
          short_number(p.difference_rms, p.measured > 0), short_number(p.rms, p.measured > 0),
          short_number(p.ulps, p.measured > 0)})
      html.leaf("td", number, {{"class", "n"}});
  }
}

}  // namespace lockstep
