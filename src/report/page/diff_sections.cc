// The parts of a page of two traces.
#include <fmt/format.h>

#include <algorithm>

#include "src/judge/ledger.h"
#include "src/report/page/sections.h"

namespace lockstep {
namespace {

bool is_first(const std::optional<DiffResult::Node>& first, const Place& place) {
  return first && first->id.place == place;
}

// The class of a place's colours.
std::string_view kind_of(const DiffPlace& p) {
  // Two classes in one: the colour of a judged run's kind, and "differs", by which cells are found
  // whatever their colour.
  if (p.unlike) return "structural differs";
  if (p.equal == p.rows) return "bitwise";
  if (p.measured == 0) return "inconclusive";
  return p.ulps <= 1 ? "rounding" : "propagated differs";
}

// The filter knows rows by one class.
std::string row_class_of(const DiffPlace& p) {
  const std::string_view kind = kind_of(p);
  return fmt::format("v-{}", kind.ends_with("differs") ? "differs" : kind);
}

// The text of a cell, for who points at it and for who hears the page read.
std::string line_of(const DiffPlace& p) {
  std::string line = fmt::format("{}: {}; {} of {} rows equal", text_of(p.place),
                                 meaning_of_mark(mark_of(p)), p.equal, p.rows);
  if (p.measured > 0)
    line += fmt::format("; difference rms {}, {} ulp, of values of rms {}",
                        short_number(p.difference_rms), short_number(p.ulps), short_number(p.rms));
  return line;
}

}  // namespace

// Cells are coloured by the kinds that a judged run has, so that both pages share one style and one
// filter.
void write_map(Html& html, const DiffResult& result) {
  if (result.places.empty()) return;
  const Part part(html, "map", "Every op of every layer",
                  "One cell an op: = equal bits in both traces, a number: so many ulps apart on "
                  "average, # other bits and no numbers that say how far, x other choices, ! "
                  "not finite in one only, or another shape.");
  PlaceMap map;
  // Where noise explains every difference, the first of other bits is framed.
  const std::optional<DiffResult::Node>& first =
      result.first_kind ? result.first_kind : result.first_bits;
  for (size_t i = 0; i < result.places.size(); ++i) {
    const DiffPlace& p = result.places[i];
    map.cells.push_back({.place = p.place,
                         .kind = std::string(kind_of(p)),
                         .glyph = mark_of(p),
                         .line = line_of(p),
                         .link = row_id(i),
                         .first = is_first(first, p.place)});
  }
  const auto of = [&](std::string_view kind) -> size_t {
    return std::ranges::count(map.cells, kind, &PlaceMap::Cell::kind);
  };
  map.choices = {{"f-wrong", "propagated", ">1", "ulp apart or unlike",
                  of("propagated differs") + of("structural differs")},
                 {"f-rounding", "rounding", "<1", "ulp apart", of("rounding")},
                 {"f-bitwise", "bitwise", "=", "equal bits", of("bitwise")},
                 {"f-inconclusive", "inconclusive", "#", "no numbers", of("inconclusive")}};
  std::erase_if(map.choices, [](const PlaceMap::Choice& c) { return c.cells == 0; });
  map.write(html);
}

// Every number of the map once more, as a table: each cell links to its row. What is said in
// sentences comes before it.
void write_places(Html& html, const DiffResult& result) {
  if (!result.structure.empty()) {
    const Part part(html, "structure", "What makes them no runs of the same thing");
    const auto list = html.open("ul", {{"class", "plain"}});
    for (const std::string& sentence : result.structure) html.leaf("li", sentence);
  }
  if (!result.judged.empty()) {
    const Part part(html, "judged", "Each against the exact results");
    const auto list = html.open("ul", {{"class", "plain"}});
    for (const DiffResult::Judgement& j : result.judged)
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
    const auto row = html.open("tr", {{"id", row_id(i)}, {"class", row_class_of(p)}});
    html.leaf("td", text_of(p.place), {{"class", "mono"}});
    for (const std::string& number :
         {fmt::format("{}/{}", p.equal, p.rows), std::to_string(p.measured),
          short_number(p.difference_rms, p.measured > 0), short_number(p.rms, p.measured > 0),
          short_number(p.ulps, p.measured > 0)})
      html.leaf("td", number, {{"class", "n"}});
  }
}

}  // namespace lockstep
