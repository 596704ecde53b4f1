#include "src/diff/diff_story.h"

#include <fmt/format.h>

#include "src/judge/ledger.h"

namespace lockstep {
namespace {

// Says what only one of the two has, or has without numbers; "": nothing.
std::string other_structure(const DiffResult& result) {
  if (!result.structure.empty()) return result.structure.front();
  std::string text;
  if (const int64_t more = result.more_a + result.more_b; more > 0)
    text = fmt::format("{} tokens were fed in one trace only", more);
  if (result.unmeasured > 0)
    text += fmt::format("{}{} rows of other bits have no numbers that say how far apart they are",
                        text.empty() ? "" : ", ", result.unmeasured);
  return text;
}

std::string what_differs(const DiffNode& node) {
  if (!node.reason.empty()) return node.reason;
  std::string text = fmt::format("relative difference {:.3g}", node.relative);
  if (node.of_element) text += " of one element";
  if (!node.measured) text += " or more";
  if (node.requests > 1) text += fmt::format(" over {} requests together", node.requests);
  return text + fmt::format(", where noise explains {:.3g}", node.limit);
}

// Says which rows no verdict rests on, as only one of the two shows them; "": none.
std::string not_common(const DiffResult& result) {
  const int64_t alone = result.only_a + result.only_b - result.more_a - result.more_b;
  return alone > 0 ? fmt::format("; {} rows are in one trace only, and were not compared", alone)
                   : "";
}

}  // namespace

void summarise(DiffResult& result, const std::string& broken) {
  const auto& bits = result.first_bits;
  const auto& kind = result.first_kind;
  const auto where = [](const DiffNode& n) {
    return fmt::format("{}, request {}, position {}", text_of(n.id.place), n.id.request,
                       n.position);
  };
  const std::string structure = other_structure(result);
  if (result.rows == 0) {
    result.verdict = DiffVerdict::inconclusive;
    result.story = "Nothing was compared: the two traces have no row of the selection in common";
  } else if (kind) {
    result.verdict = DiffVerdict::different;
    const bool certain = result.unmeasured_before == 0;
    result.story =
        fmt::format("{}: {}: {}; bits differ first at {}",
                    certain ? "First different in kind" : "Different in kind, here at the latest",
                    where(*kind), what_differs(*kind), where(*bits));
    if (!certain)
      result.story += fmt::format(
          ", and {} rows of other bits before have no numbers that say how far apart they are: "
          "keep them with --keep full",
          result.unmeasured_before);
  } else if (!broken.empty()) {
    result.verdict = DiffVerdict::inconclusive;
    result.story =
        fmt::format("Nothing differs by more than noise in {} rows, but {}", result.rows, broken);
  } else if (!structure.empty()) {
    result.verdict = DiffVerdict::different;
    result.story = structure;
    if (bits) result.story += fmt::format("; bits differ first at {}", where(*bits));
  } else if (bits) {
    result.verdict = DiffVerdict::noise;
    result.story = fmt::format(
        "{} of {} rows have other bits, first at {}; no difference is larger than rounding noise "
        "explains, which a judgement with --model can confirm",
        result.rows - result.equal, result.rows, where(*bits));
  } else {
    result.verdict = DiffVerdict::identical;
    result.story = fmt::format("All {} rows{} have the same bits", result.rows,
                               not_common(result).empty() ? "" : " that both have");
  }
  if (result.rows > 0) result.story += not_common(result);
}

const char* name_of(DiffVerdict verdict) {
  static constexpr const char* kNames[] = {"identical", "noise", "different", "inconclusive"};
  return kNames[static_cast<size_t>(verdict)];
}

int exit_status(const DiffResult& result) {
  if (result.verdict == DiffVerdict::inconclusive) return 2;
  return result.verdict == DiffVerdict::different ? 1 : 0;
}

}  // namespace lockstep
