// A table with a line an implementation, a paragraph for each that is wrong, and the verdict. What
// is not measured shows as a dash or stays empty, and never as a 0.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "src/judge/ledger.h"
#include "src/judge/story.h"
#include "src/replay/replay.h"
#include "src/replay/repro.h"
#include "src/session/build_info.h"

namespace lockstep {
namespace {

std::string number(double x) {
  if (std::isinf(x)) return "inf";
  return x >= 1e4 ? fmt::format("{:.1e}", x) : fmt::format("{:.3g}", x);
}

std::string time_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  return seconds < 1 ? fmt::format("{:.3g} ms", seconds * 1e3) : fmt::format("{:.3g} s", seconds);
}

std::string verdict_of(const TrialResult& trial) {
  if (trial.wrong > 0) return fmt::format("wrong in {} of {}", trial.wrong, trial.judged);
  if (trial.judged < trial.expected)
    return fmt::format("{} of {} judged", trial.judged, trial.expected);
  return trial.bitwise == trial.judged ? "exact bits" : "within rounding";
}

Table table_of(const ReplayResult& result) {
  Table table{{"by",
               "nodes",
               {"rows as the trace", Table::Align::right, 0},
               {"ulp", Table::Align::right, 0},
               {"budgets", Table::Align::right, 0},
               {"time", Table::Align::right, 0}},
              {}};
  for (const TrialResult& trial : result.trials)
    table.rows.push_back(
        {trial.name, verdict_of(trial),
         trial.seconds ? fmt::format("{} of {}", trial.equal_rows, trial.rows) : std::string(),
         trial.ulps ? number(*trial.ulps) : std::string("-"),
         trial.worst ? number(trial.worst->budgets) : std::string("-"),
         trial.seconds ? time_text(*trial.seconds) : std::string()});
  return table;
}

void add_wrong(const TrialResult& trial, const Point& p, std::vector<Block>& blocks) {
  KeyValues lines{.entries = {}, .indent = 5, .key_width = 12};
  if (const auto& worst = trial.worst) {
    std::vector<std::string> axes;
    for (size_t i = 1; i < worst->index.size(); ++i)
      axes.push_back(fmt::format("{}", worst->index[i]));
    lines.entries.emplace_back(
        "worst",
        fmt::format("want {}, got {}\nrequest {}, position {}, {} [{}], pass {}",
                    shown(worst->want, 6), shown(worst->got, 6), worst->request, worst->index.at(0),
                    p.shape.substr(p.shape.find(',') == p.shape.npos ? p.shape.size()
                                                                     : p.shape.find(',') + 2),
                    fmt::join(axes, ", "), worst->pass));
  }
  if (!trial.rule.empty()) lines.entries.emplace_back("where", trial.rule);
  if (!trial.looks_like.empty())
    lines.entries.emplace_back("looks like", text_of(trial.looks_like));
  if (trial.contract != "fused") lines.entries.emplace_back("held to", trial.contract);
  blocks.push_back(
      Paragraph{fmt::format("{} is wrong in {} of {} nodes", trial.name, trial.wrong, trial.judged),
                2, 2, /*strong=*/true});
  blocks.push_back(std::move(lines));
}

// How a set of results is said in a sentence: "the trace and ./mine.so".
std::string names_of(const ReplayResult& result, bool wrong) {
  std::vector<std::string> names;
  for (const TrialResult& trial : result.trials)
    if ((trial.wrong > 0) == wrong) names.push_back(trial.name);
  return fmt::format("{}", fmt::join(names, " and "));
}

}  // namespace

std::string story_of(const ReplayResult& result) {
  const std::string what =
      fmt::format("{} in {} rows of {} passes", text_of(result.place), result.rows, result.passes);
  switch (exit_status(result)) {
    case 0:
      return fmt::format("{} {} right", what, result.rows == 1 ? "is" : "are");
    case 1: {
      const std::string right = names_of(result, false);
      return fmt::format("{}: {} {} wrong{}", what, names_of(result, true),
                         result.trials.size() > 1 ? "computed it" : "is",
                         right.empty() ? "" : fmt::format(", {} right", right));
    }
    default:
      break;
  }
  for (const TrialResult& trial : result.trials)
    if (trial.judged < trial.expected)
      return fmt::format("{}: of {} {} of {} nodes could be judged; {}", what, trial.name,
                         trial.judged, trial.expected, trial.reason);
  return what + ": nothing could be judged";
}

Document document_of(const ReplayResult& result) {
  Document document{.json = report_json(result)};
  std::vector<Block>& blocks = document.blocks;
  blocks.push_back(
      Paragraph{fmt::format("lockstep {}  {}  {} on {}", kToolVersion, text_of(result.place),
                            name_of(result.dtype), result.device),
                0, 2, /*strong=*/true});
  blocks.push_back(Paragraph{fmt::format("{}: {} rows, {} of {} passes", result.source, result.rows,
                                         result.passes, result.of_passes),
                             2, 4});
  if (result.passes < result.of_passes)
    blocks.push_back(Paragraph{"the others could not be computed again: " + result.lacking, 2, 4});
  if (!result.unlike_run.empty())
    blocks.push_back(Paragraph{"not as in the run: " + result.unlike_run, 2, 4});
  if (!result.unread.empty())
    blocks.push_back(Paragraph{
        fmt::format("arrays that are not read: {}", fmt::join(result.unread, ", ")), 2, 4});
  blocks.push_back(Heading{});
  blocks.push_back(table_of(result));
  for (const TrialResult& trial : result.trials) {
    if (trial.wrong == 0) continue;
    blocks.push_back(Heading{});
    add_wrong(trial, *result.place.point, blocks);
  }
  blocks.push_back(Heading{});
  static constexpr const char* kVerdicts[] = {"clean", "diverged", "inconclusive"};
  blocks.push_back(Conclusion{kVerdicts[exit_status(result)], story_of(result)});
  return document;
}

}  // namespace lockstep
