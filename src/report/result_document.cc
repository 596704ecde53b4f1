#include <fmt/format.h>

#include <algorithm>

#include "src/judge/ledger.h"
#include "src/judge/story.h"
#include "src/report/report.h"

namespace lockstep {
namespace {

// A screen holds so many; the data and the JSON report have all of them.
constexpr size_t kPlaces = 12;
constexpr size_t kFindings = 10;

Table places_table(const std::vector<PlaceSummary>& places) {
  Table table{{{"place (worst first)", Align::left, 24},
               {"verdict", Align::left, 12},
               {"nodes", Align::right, 9},
               {"T1", Align::right, 9},
               {"of row", Align::right, 9},
               {"T2", Align::right, 9},
               {"introduced", Align::right, 11},
               {"total rms", Align::right, 11},
               {"", Align::left, 0}},
              {},
              "{:.3g}",
              1};
  for (const PlaceSummary& p : places)
    table.rows.push_back({text_of(p.place), name_of(p.verdict),
                          fmt::format("{}/{}", p.judged, p.expected), budgets_text(p.worst_t1),
                          p.worst_of_row, p.worst_t2, p.introduced_rms, p.total_rms,
                          p.ancestor.empty() ? "" : " from " + p.ancestor});
  return table;
}

void add_places(const Result& result, size_t most, std::vector<Block>& blocks) {
  std::vector<PlaceSummary> places = result.places;
  std::ranges::stable_sort(places, [](const PlaceSummary& a, const PlaceSummary& b) {
    const int ga = gravity_of(a.verdict), gb = gravity_of(b.verdict);
    if (ga != gb) return ga > gb;
    return std::max(a.worst_t1, a.worst_t2) > std::max(b.worst_t1, b.worst_t2);
  });
  if (places.size() > most) places.resize(most);
  blocks.push_back(places_table(places));
  if (result.places.size() > places.size())
    blocks.push_back(Paragraph{
        fmt::format("... and {} places less grave", result.places.size() - places.size())});
}

void add_list(const char* title, std::vector<std::string> items, std::vector<Block>& blocks) {
  if (items.empty()) return;
  blocks.push_back(Heading{title});
  blocks.push_back(List{std::move(items)});
}

std::vector<std::string> findings_of(const Result& result, size_t most) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(most, result.findings.size()); ++i) {
    const Finding& f = result.findings[i];
    lines.push_back(fmt::format("pass {} {}, {}: {}", f.node.pass, text_of(f.node.place),
                                name_of(f.verdict), text_of(f)));
  }
  if (result.findings.size() > most)
    lines.push_back(fmt::format("... and {} more", result.findings.size() - most));
  return lines;
}

std::vector<std::string> confirmations_of(const Result& result) {
  std::vector<std::string> lines;
  for (const Confirmation& c : result.confirmations)
    lines.push_back(
        fmt::format("{} {}: {}", c.confirmed ? "yes" : "no ", text_of(c.place), c.says));
  return lines;
}

std::string counts_text(const Result& result) {
  std::string text = fmt::format("nodes {} of {} judged:", result.judged, result.expected);
  for (int i = 0; i < kVerdicts; ++i)
    if (const int64_t n = result.counts[static_cast<size_t>(i)]; n > 0)
      text += fmt::format(" {} {}", n, name_of(static_cast<Verdict>(i)));
  return text;
}

std::string logits_text(const LogitsSummary& l) {
  return fmt::format(
      "logits against the fp64 model: max difference {:.3g}, mean KL {:.3g}, argmax equal {} of "
      "{}, explained flips {}",
      l.max_abs, l.kl_mean, l.argmax_equal, l.compared, l.explained_flips);
}

Table data_of(const Result& result) {
  Table table{
      {"layer", "point", "verdict", "expected", "judged", "worst_t1", "worst_t2", "worst_of_row",
       "request", "position", "pass", "introduced_rms", "propagated_rms", "total_rms", "ancestor"},
      {}};
  for (const PlaceSummary& p : result.places)
    table.rows.push_back(
        {p.place.layer < 0 ? Cell("") : Cell(int64_t{p.place.layer}),
         std::string(p.place.point->name), name_of(p.verdict), p.expected, p.judged, p.worst_t1,
         p.worst_t2, p.worst_of_row, int64_t{p.worst_request}, int64_t{p.worst_position},
         int64_t{p.worst_pass}, p.introduced_rms, p.propagated_rms, p.total_rms, p.ancestor});
  return table;
}

}  // namespace

Document document_of(const Result& result, Detail detail) {
  Document document{.data = data_of(result), .json = report_json(result)};
  std::vector<Block>& blocks = document.blocks;
  const bool all = detail == Detail::everything;
  add_places(result, all ? result.places.size() : kPlaces, blocks);
  add_list("findings, in the order of the computation",
           findings_of(result, all ? result.findings.size() : kFindings), blocks);
  add_list("run again with ops put right, the worst elements computed a second time",
           confirmations_of(result), blocks);
  add_list("blind to", result.blind, blocks);
  add_list("notes", result.notes, blocks);
  blocks.push_back(Heading{});
  blocks.push_back(Paragraph{counts_text(result)});
  if (const auto limits = result.provenance.find("limits"); limits != result.provenance.end())
    blocks.push_back(Paragraph{"limits: " + limits->second});
  if (result.logits) blocks.push_back(Paragraph{logits_text(*result.logits)});
  blocks.push_back(Heading{});
  blocks.push_back(Conclusion{name_of(result.verdict), result.story});
  return document;
}

}  // namespace lockstep
