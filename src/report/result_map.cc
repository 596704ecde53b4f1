// The map of layers by points, one glyph an op. Neighbouring layers that look alike are drawn once,
// as a range, and of a large model layers without errors of their own are left out first, so that a
// map of eighty layers is a few lines.
#include "src/report/result_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "src/report/marks.h"
#include "src/report/point_columns.h"

namespace lockstep {
namespace {

constexpr size_t kAllRows = 12;   // a model of so many layers is shown whole
constexpr size_t kMostRows = 20;  // of another one, no more than these

char glyph_of(const Result& result, const PlaceSummary& place) {
  return mark_of(result, place).glyph.front();
}

// A layer's glyphs by column; a blank where the layer has no such point.
struct MapRow {
  int first = 0, last = 0;  // layers
  std::string glyphs;

  bool is_calm() const { return glyphs.find_first_not_of("=. ") == std::string::npos; }
  bool has_errors() const { return glyphs.find_first_of("XN!") != std::string::npos; }
};

// A row a layer, a mark a point; a blank where there was nothing to judge.
std::vector<MapRow> rows_of(const Result& result, const std::vector<const Point*>& columns) {
  std::map<int, std::string> by_layer;
  for (const PlaceSummary& p : result.places) {
    if (p.place.layer < 0) continue;
    std::string& row = by_layer.try_emplace(p.place.layer, columns.size(), ' ').first->second;
    const auto at =
        std::ranges::find_if(columns, [&](const Point* c) { return *c == *p.place.point; });
    row[at - columns.begin()] = glyph_of(result, p);
  }
  std::vector<MapRow> rows;
  for (auto& [layer, glyphs] : by_layer) rows.push_back({layer, layer, std::move(glyphs)});
  return rows;
}

// Neighbours that look alike become one row: "12-30".
std::vector<MapRow> merged(const std::vector<MapRow>& rows) {
  std::vector<MapRow> out;
  for (const MapRow& row : rows)
    if (!out.empty() && out.back().last + 1 == row.first && out.back().glyphs == row.glyphs)
      out.back().last = row.last;
    else
      out.push_back(row);
  return out;
}

// Drops rows from the end of the model, those without errors of their own first.
std::vector<MapRow> at_most(std::vector<MapRow> rows, size_t most) {
  for (const bool errors_too : {false, true})
    // Errors of early layers explain those of later ones, so that the last rows are the least loss.
    for (size_t i = rows.size(); i-- > 0 && rows.size() > most;)
      if (errors_too || !rows[i].has_errors()) rows.erase(rows.begin() + i);
  return rows;
}

// A map that leaves rows out says what is in them, or a reader would take them for right.
std::string left_out(const std::vector<MapRow>& shown, const std::vector<MapRow>& all) {
  int64_t calm = 0, errors = 0, others = 0;
  for (const MapRow& row : all) {
    // Rows that are shown may be merged ones.
    const bool seen = std::ranges::any_of(
        shown, [&](const MapRow& s) { return s.first <= row.first && row.last <= s.last; });
    if (!seen) ++(row.is_calm() ? calm : row.has_errors() ? errors : others);
  }
  std::string text;
  const auto say = [&](int64_t count, const char* what) {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
  };
  say(calm, "all = or .");
  say(others, "without errors of their own");
  say(errors, "with errors of their own");
  return text.empty() ? text : fmt::format("layers not shown: {}", text);
}

Table table_of(const std::vector<MapRow>& rows, const std::vector<const Point*>& columns) {
  Table table{.columns = {{"layer", Table::Align::right, 5}}, .gap = 1, .marks = true};
  // Names of two characters and more stand three apart, so that columns can be followed by eye.
  const int width = columns.size() > 18 ? 1 : 3;
  for (const Point* column : columns)
    table.columns.push_back({std::string(column->column), Table::Align::right, width});
  for (const MapRow& row : rows) {
    const std::string layers = row.first == row.last ? std::to_string(row.first)
                                                     : fmt::format("{}-{}", row.first, row.last);
    auto& cells = table.rows.emplace_back(std::vector<Cell>{layers});
    for (const char glyph : row.glyphs) cells.push_back(std::string(glyph == ' ' ? 0 : 1, glyph));
  }
  return table;
}

// The places that are of no layer, in one line: "embed =  final.norm ~  logits ~".
std::string others_of(const Result& result) {
  std::string text;
  for (const PlaceSummary& p : result.places)
    if (p.place.layer < 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : "   ", p.place.point->name,
                          glyph_of(result, p));
  return text;
}

// The marks that occur alone.
std::string legend_of(const std::set<char>& used) {
  std::string text;
  for (const Mark& mark : marks())
    if (used.contains(mark.glyph.front()))
      text += fmt::format("{}{} {}", text.empty() ? "" : "   ", mark.glyph, mark.says);
  return text;
}

}  // namespace

// Models of few layers are drawn whole. Of others, layers in which all is well are left out, like
// neighbours are merged, and the first rows are shown.
std::vector<Block> map_of(const Result& result) {
  std::vector<Place> places;
  std::set<char> used;
  for (const PlaceSummary& p : result.places) {
    places.push_back(p.place);
    used.insert(glyph_of(result, p));
  }
  const std::vector<const Point*> columns = layer_columns(places);
  const std::vector<MapRow> all = rows_of(result, columns);
  std::vector<MapRow> shown = all;
  if (all.size() > kAllRows) {
    std::erase_if(shown, [](const MapRow& row) { return row.is_calm(); });
    shown = at_most(merged(shown), kMostRows);
  }
  std::vector<Block> blocks;
  if (!shown.empty()) blocks.push_back(table_of(shown, columns));
  if (const std::string text = left_out(shown, all); !text.empty())
    blocks.push_back(Paragraph{text, 6, 8});
  if (const std::string text = others_of(result); !text.empty())
    blocks.push_back(Paragraph{text, 6, 8});
  blocks.push_back(Paragraph{legend_of(used), 6, 8});
  return blocks;
}

}  // namespace lockstep
