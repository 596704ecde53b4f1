#include <fmt/format.h>

#include <algorithm>

#include "src/judge/ledger.h"
#include "src/judge/story.h"
#include "src/report/report.h"

namespace lockstep {
namespace {

// What a screen holds; the JSON report has all of it.
constexpr size_t kPlaces = 12;
constexpr size_t kFindings = 10;

std::string places_table(const Result& result) {
  std::vector<PlaceSummary> places = result.places;
  std::ranges::stable_sort(places, [](const PlaceSummary& a, const PlaceSummary& b) {
    const int ga = gravity_of(a.verdict), gb = gravity_of(b.verdict);
    if (ga != gb) return ga > gb;
    return std::max(a.worst_t1, a.worst_t2) > std::max(b.worst_t1, b.worst_t2);
  });
  if (places.size() > kPlaces) places.resize(kPlaces);
  std::string text =
      fmt::format("{:<24} {:<12} {:>9} {:>9} {:>9} {:>9} {:>11} {:>11}\n", "place (worst first)",
                  "verdict", "nodes", "T1", "of row", "T2", "introduced", "total rms");
  for (const PlaceSummary& p : places) {
    text += fmt::format("{:<24} {:<12} {:>9} {:>9} {:>9.3g} {:>9.3g} {:>11.3g} {:>11.3g}",
                        text_of(p.place), name_of(p.verdict),
                        fmt::format("{}/{}", p.judged, p.expected), budgets_text(p.worst_t1),
                        p.worst_of_row, p.worst_t2, p.introduced_rms, p.total_rms);
    text += p.ancestor.empty() ? "\n" : fmt::format("  from {}\n", p.ancestor);
  }
  if (result.places.size() > places.size())
    text += fmt::format("... and {} places less grave\n", result.places.size() - places.size());
  return text;
}

std::string findings_list(const Result& result) {
  if (result.findings.empty()) return "";
  std::string text = "\nfindings, in the order of the computation\n";
  for (size_t i = 0; i < std::min(kFindings, result.findings.size()); ++i) {
    const Finding& f = result.findings[i];
    text += fmt::format("  pass {} {}, {}: {}\n", f.pass, text_of(f.place), name_of(f.verdict),
                        text_of(f));
  }
  if (result.findings.size() > kFindings)
    text += fmt::format("  ... and {} more\n", result.findings.size() - kFindings);
  return text;
}

std::string confirmations_list(const Result& result) {
  if (result.confirmations.empty()) return "";
  std::string text = "\nrun again with ops put right, the worst elements computed a second time\n";
  for (const Confirmation& c : result.confirmations)
    text += fmt::format("  {} {}: {}\n", c.confirmed ? "yes" : "no ", text_of(c.place), c.says);
  return text;
}

std::string listed(const char* title, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string text = fmt::format("\n{}\n", title);
  for (const std::string& line : lines) text += fmt::format("  {}\n", line);
  return text;
}

std::string counts_line(const Result& result) {
  std::string text = fmt::format("\nnodes {} of {} judged:", result.judged, result.expected);
  for (int i = 0; i < kVerdicts; ++i)
    if (const int64_t n = result.counts[static_cast<size_t>(i)]; n > 0)
      text += fmt::format(" {} {}", n, name_of(static_cast<Verdict>(i)));
  return text + "\n";
}

std::string limits_line(const Result& result) {
  const auto limits = result.provenance.find("limits");
  return limits == result.provenance.end() ? "" : "limits: " + limits->second + "\n";
}

std::string logits_line(const Result& result) {
  if (!result.logits) return "";
  const LogitsSummary& l = *result.logits;
  return fmt::format(
      "logits against the fp64 model: max difference {:.3g}, mean KL {:.3g}, argmax equal {} of "
      "{}, "
      "explained flips {}\n",
      l.max_abs, l.kl_mean, l.argmax_equal, l.compared, l.explained_flips);
}

}  // namespace

std::string report_table(const Result& result) {
  return places_table(result) + findings_list(result) + confirmations_list(result) +
         listed("blind to", result.blind) + listed("notes", result.notes) + counts_line(result) +
         limits_line(result) + logits_line(result) + "\n" + result.verdict + ": " + result.story +
         "\n";
}

}  // namespace lockstep
