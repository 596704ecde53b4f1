// The map of layers x points, and the filter above it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "src/judge/ledger.h"
#include "src/report/page/sections.h"

namespace lockstep {
namespace {

constexpr size_t kTallRows = 24;  // layers beyond which cells are less high

// A link, so that the map works without the script.
void write_cell(Html& html, const std::vector<PlaceMap::Cell>& cells, size_t i) {
  const PlaceMap::Cell& cell = cells[i];
  html.leaf("a", cell.glyph,
            {{"class", fmt::format("cell {}{}", cell.kind, cell.first ? " first" : "")},
             {"href", "#" + cell.link},
             {"data-place", std::to_string(i)},
             {"title", cell.line},
             {"aria-label", cell.line}});
}

// Those before or after the layers.
void write_ends(Html& html, const std::vector<PlaceMap::Cell>& cells,
                const std::vector<size_t>& numbers) {
  if (numbers.empty()) return;
  const auto list = html.open("ul", {{"class", "ends"}});
  for (const size_t i : numbers) {
    const auto item = html.open("li");
    write_cell(html, cells, i);
    html.text(cells[i].place.point->name);
  }
}

// The filter is made of radio buttons, so that it works without a program.
void write_filter(Html& html, const std::vector<PlaceMap::Choice>& choices, size_t all) {
  const auto set = html.open("fieldset", {{"class", "legend"}});
  html.leaf("legend", "show");
  const auto choice = [&](const PlaceMap::Choice& c, bool checked) {
    if (checked)
      html.single("input",
                  {{"type", "radio"}, {"name", "filter"}, {"id", c.id}, {"checked", "checked"}});
    else
      html.single("input", {{"type", "radio"}, {"name", "filter"}, {"id", c.id}});
    const auto label = html.open("label", {{"for", c.id}});
    if (!c.glyph.empty())
      html.leaf("span", c.glyph, {{"class", "chip " + c.kind}, {"aria-hidden", "true"}});
    html.text(fmt::format("{} {}", c.label, c.cells));
  };
  choice({.id = "f-all", .label = "all", .cells = all}, true);
  for (const PlaceMap::Choice& c : choices) choice(c, false);
}

void write_rows(Html& html, const std::vector<PlaceMap::Cell>& cells, const std::set<int>& layers,
                const std::set<int>& points) {
  const auto body = html.open("tbody");
  for (const int layer : layers) {
    const auto row = html.open("tr");
    html.leaf("th", std::to_string(layer), {{"class", "layer"}, {"scope", "row"}});
    for (const int point : points) {
      const auto place = html.open("td");
      const auto cell = std::ranges::find_if(cells, [&](const PlaceMap::Cell& c) {
        return c.place.layer == layer && c.place.point->order() == point;
      });
      if (cell != cells.end()) write_cell(html, cells, cell - cells.begin());
    }
  }
}

// Layers down, points across; cells shrink where there are many layers.
void write_layers(Html& html, const std::vector<PlaceMap::Cell>& cells) {
  std::set<int> layers, points;
  for (const PlaceMap::Cell& c : cells)
    if (c.place.layer >= 0) layers.insert(c.place.layer), points.insert(c.place.point->order());
  if (layers.empty()) return;
  const bool tall = layers.size() > kTallRows;
  const auto table =
      html.open("table", {{"class", "map"}, {"style", tall ? "--cell:15px" : "--cell:21px"}});
  const bool framed = std::ranges::any_of(cells, &PlaceMap::Cell::first);
  html.leaf("caption",
            fmt::format("Layers from the first at the top, points of a layer in the order of the "
                        "computation. {}Arrow keys go from cell to cell; Enter follows a cell to "
                        "its numbers.",
                        framed ? "The frame is around the first finding. " : ""));
  {
    const auto head = html.open("thead");
    const auto row = html.open("tr");
    html.leaf("th", "layer", {{"class", "layer"}, {"scope", "col"}});
    for (const int point : points) {
      const auto column = html.open("th", {{"scope", "col"}});
      html.leaf("span", kPoints.at(point).name);
    }
  }
  write_rows(html, cells, layers, points);
}

// Choices without a cell are not offered. Several verdicts make an op wrong; they share one choice.
std::vector<PlaceMap::Choice> choices_of(const Result& result) {
  std::vector<PlaceMap::Choice> choices;
  const auto add = [&](const std::string& id, const Mark& mark, size_t cells) {
    if (cells > 0)
      choices.push_back(
          {id, std::string(mark.name), std::string(mark.glyph), std::string(mark.says), cells});
  };
  const std::vector<bool> wrong = wrong_places(result);
  const auto first = std::ranges::find(wrong, true) - wrong.begin();
  // The filter shows the first one's glyph where several kinds of ops are wrong.
  if (first < std::ssize(wrong))
    add("f-wrong", mark_of(result, result.places[first]), std::ranges::count(wrong, true));
  for (const Verdict verdict : {Verdict::confounded, Verdict::propagated, Verdict::rounding,
                                Verdict::bitwise, Verdict::inconclusive}) {
    const Mark& mark = mark_of(verdict);
    add(fmt::format("f-{}", mark.name), mark,
        std::ranges::count(result.places, verdict, &PlaceSummary::verdict));
  }
  return choices;
}

}  // namespace

// Places of no layer stand above or below the table, as they are computed before or after.
void PlaceMap::write(Html& html) const {
  std::vector<size_t> before, after;
  bool layers_seen = false;
  // Cells come in graph order: the first one in a layer parts what is before from what is after.
  for (size_t i = 0; i < cells.size(); ++i) {
    layers_seen = layers_seen || cells[i].place.layer >= 0;
    if (cells[i].place.layer < 0) (layers_seen ? after : before).push_back(i);
  }
  write_filter(html, choices, cells.size());
  write_ends(html, cells, before);
  write_layers(html, cells);
  write_ends(html, cells, after);
  html.leaf("p", "Point at a cell, or focus it: its numbers stand here.",
            {{"class", "readout"}, {"id", "readout"}, {"aria-live", "polite"}});
}

// A wrong cell leads to its description, another one to its row in the table.
void write_map(Html& html, const Result& result) {
  if (result.places.empty()) return;
  const Part part(html, "map", "Every op of every layer",
                  "One cell an op: all its nodes, over all passes and requests, by the gravest "
                  "of their verdicts.");
  const std::vector<bool> wrong = wrong_places(result);
  PlaceMap map{.choices = choices_of(result)};
  for (size_t i = 0; i < result.places.size(); ++i) {
    const PlaceSummary& p = result.places[i];
    const Mark& mark = mark_of(result, p);
    map.cells.push_back({.place = p.place,
                         .kind = std::string(mark.name),
                         .glyph = std::string(mark.glyph),
                         .line = line_of(p, mark),
                         .link = wrong[i] ? part_id(i) : row_id(i),
                         .first = result.first && result.first->node.place == p.place});
  }
  map.write(html);
}

}  // namespace lockstep
