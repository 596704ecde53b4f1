// A comparison of two traces as people read it: the two sides and how their origins differ
// (diff_origin.h), a map of how far apart each op is in ulp, in which the first difference stands
// in brackets, tokens that part, and the verdict.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "src/judge/ledger.h"
#include "src/report/diff_origin.h"
#include "src/report/marks.h"
#include "src/report/point_columns.h"
#include "src/report/report.h"
#include "src/stats/moments.h"

namespace lockstep {
namespace {

constexpr size_t kMostFlips = 4;  // that are told one by one
constexpr size_t kMostSentences = 8;
constexpr int kHang = 8;  // columns of "tokens  " and the like

bool is_at(const std::optional<DiffResult::Node>& node, const Place& place) {
  return node && node->id.place == place;
}

std::string mark_of(const DiffPlace& place, const DiffResult& result) {
  const std::string mark = mark_of(place);
  return is_at(result.first_kind, place.place) ? fmt::format("[{}]", mark) : mark;
}

const DiffPlace* find(const DiffResult& result, const Place& place) {
  const auto found = std::ranges::find(result.places, place, &DiffPlace::place);
  return found == result.places.end() ? nullptr : &*found;
}

// Layers that look alike share a row.
Table map_of(const DiffResult& result) {
  std::vector<Place> places;
  int layers = 0;
  for (const DiffPlace& p : result.places) {
    places.push_back(p.place);
    layers = std::max(layers, p.place.layer + 1);
  }
  const std::vector<const Point*> points = layer_columns(places);
  Table table{{{"ulps", Table::Align::right, 5}}, {}, "{}", 1};
  // Three characters hold any mark but the one in brackets, which widens its column.
  for (const Point* point : points)
    table.columns.emplace_back(std::string(point->column), Table::Align::right, 3);
  int first = 0;
  for (int layer = 0; layer < layers && !points.empty(); ++layer) {
    std::vector<Cell> row{std::to_string(layer)};
    for (const Point* point : points) {
      const DiffPlace* place = find(result, {point, layer});
      row.emplace_back(place ? mark_of(*place, result) : std::string());
    }
    if (!table.rows.empty() &&
        std::equal(row.begin() + 1, row.end(), table.rows.back().begin() + 1))
      table.rows.back()[0] = fmt::format("{}-{}", first, layer);
    else
      first = layer, table.rows.push_back(std::move(row));
  }
  return table;
}

// Places that are of no layer, in one line; "": none.
std::string outside_of_layers(const DiffResult& result) {
  std::vector<std::string> all;
  for (const DiffPlace& p : result.places)
    if (p.place.layer < 0)
      all.push_back(fmt::format("{} {}", p.place.point->name, mark_of(p, result)));
  return all.empty() ? "" : fmt::format("model  {}", fmt::join(all, "  "));
}

// The marks that stand in the map, explained.
std::string legend_of(const DiffResult& result) {
  std::string legend = "= equal bits";
  for (const char* mark : {"#", "x", "!"})
    if (std::ranges::any_of(result.places,
                            [mark](const DiffPlace& place) { return mark_of(place) == mark; }))
      legend += fmt::format("   {} {}", mark, meaning_of_mark(mark));
  return legend + (result.first_kind ? "   [ ] first beyond noise" : "");
}

// The map of layers and points, where there is anything to see.
void add_map(const DiffResult& result, std::vector<Block>& blocks) {
  // Nothing but = would stand in it.
  if (result.rows == result.equal && !result.first_kind) return;
  if (Table map = map_of(result); !map.rows.empty()) blocks.push_back(std::move(map));
  if (std::string line = outside_of_layers(result); !line.empty())
    blocks.push_back(Paragraph{std::move(line), 0, 7});
  blocks.push_back(Paragraph{legend_of(result), 6, 8});
}

// A line for a request whose texts part; it says how to compare on beyond it.
std::string text_of(const DiffResult::Flip& flip, const DiffResult& result) {
  std::string text =
      fmt::format("tokens  request {} leaves at position {}", flip.request, flip.position);
  const std::string margin =
      flip.margin_ulp ? fmt::format(", margin {:.2g} ulp", *flip.margin_ulp) : "";
  if (flip.layer >= 0)
    text += fmt::format(" (other experts in layer {})", flip.layer);
  else
    text += fmt::format(" ({} / {}{})", flip.token_a, flip.token_b, margin);
  text += ": not compared from there";
  if (flip.layer < 0 && flip.cause != DiffResult::Flip::Cause::chosen)
    text +=
        fmt::format("; --force-from {} compares on", result.trace_a.empty() ? "A" : result.trace_a);
  return text;
}

// The first flips, and how far the distributions over the next token lie apart.
void add_tokens(const DiffResult& result, std::vector<Block>& blocks) {
  for (size_t i = 0; i < std::min(kMostFlips, result.flips.size()); ++i)
    blocks.push_back(Paragraph{text_of(result.flips[i], result), 0, kHang});
  if (result.flips.size() > kMostFlips)
    blocks.push_back(Paragraph{
        fmt::format("and {} more requests", result.flips.size() - kMostFlips), kHang, kHang});
  if (result.logits && result.logits->kl_max > 0)
    blocks.push_back(
        Paragraph{fmt::format("logits  mean KL {:.2g}, worst {:.2g}, over {} rows",
                              result.logits->kl_mean, result.logits->kl_max, result.logits->rows),
                  0, kHang});
}

// Two engines may number every one of their requests otherwise.
void add_sentences(const std::vector<std::string>& sentences, std::vector<Block>& blocks) {
  // One sentence more is told in the place of the line that would say that there is one more.
  const size_t told = sentences.size() > kMostSentences + 1 ? kMostSentences : sentences.size();
  for (size_t i = 0; i < told; ++i) blocks.push_back(Paragraph{sentences[i], 0, 2});
  if (told < sentences.size())
    blocks.push_back(Paragraph{
        fmt::format("and {} more such sentences (--json has all)", sentences.size() - told), 2, 2});
}

// A column that was not measured is empty, and no 0.
Table data_of(const DiffResult& result) {
  Table table{{"layer", "point", "rows", "equal", "measured", "difference_rms", "rms", "ulps"}, {}};
  for (const DiffPlace& p : result.places) {
    const auto number = [&](double x) { return p.measured > 0 ? Cell(x) : Cell(""); };
    table.rows.push_back({p.place.layer < 0 ? Cell("") : Cell(int64_t{p.place.layer}),
                          std::string(p.place.point->name), p.rows, p.equal, p.measured,
                          number(p.difference_rms), number(p.rms), number(p.ulps)});
  }
  return table;
}

const char* word_of(DiffResult::Verdict verdict) {
  return verdict == DiffResult::Verdict::inconclusive ? "cannot tell" : name_of(verdict);
}

}  // namespace

Document document_of(const DiffResult& result) {
  Document document{
      .data = data_of(result), .json = report_json(result), .tests = tests_of(result)};
  // Drawn when it is asked for: most commands write no page.
  document.page = [result] { return page_of(result); };
  std::vector<Block>& blocks = document.blocks;
  for (std::string& line : origins_of(result)) blocks.push_back(Paragraph{std::move(line), 0, 2});
  if (result.rows > 0)
    blocks.push_back(Paragraph{fmt::format("rows compared {}, equal bits {} ({:.0f} %)",
                                           result.rows, result.equal,
                                           // Rounded down: 100 % is said of all rows alone.
                                           std::floor(100 * fraction(result.equal, result.rows)))});
  if (result.only_a + result.only_b > 0)
    blocks.push_back(
        Paragraph{fmt::format("rows that only A has {}, only B {}", result.only_a, result.only_b)});
  for (const auto* sentences : {&result.renamed, &result.remarks, &result.structure})
    add_sentences(*sentences, blocks);
  add_map(result, blocks);
  add_tokens(result, blocks);
  for (const DiffResult::Judgement& j : result.judged)
    blocks.push_back(
        Paragraph{fmt::format("{} is {}: {}", j.trace, name_of(j.verdict), j.story), 0, 2});
  blocks.push_back(Conclusion{word_of(result.verdict), result.story});
  return document;
}

}  // namespace lockstep
