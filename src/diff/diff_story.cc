// The verdict of a comparison and its sentence. The order matters: traces that cannot be compared
// are inconclusive; a difference of kind is different, whatever else is within noise; judgements of
// the two against the oracle, where they were asked for, say which of them is right.
#include "src/diff/diff_story.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/judge/ledger.h"
#include "src/stats/moments.h"

namespace lockstep {
namespace {

std::string where(const DiffResult::Node& node) {
  return fmt::format("{}, request {}, position {}", text_of(node.id.place), node.id.request,
                     node.position);
}

std::string text_of(const DiffResult::Node::Share& share) {
  return fmt::format(
      "{} of {} {} ({:.3g} %) have other bits though the inputs have the same, where two right ops "
      "differ in {:.3g} % at most",
      share.different, share.of, share.of_rows ? "rows" : "elements",
      100 * fraction(share.different, share.of), 100 * share.limit);
}

std::string what_differs(const DiffResult::Node& node) {
  if (!node.reason.empty()) return node.reason;
  if (node.share) return text_of(*node.share);
  std::string text = fmt::format("{:.2g} apart", node.relative);
  if (node.of_element) text = "an element is " + text;
  if (!node.measured) text += " or more";
  if (node.requests > 1) text += fmt::format(" over {} requests together", node.requests);
  text += fmt::format(", noise {:.2g}", node.limit);
  return text + (node.same_inputs ? " (two roundings: the inputs have the same bits)" : "");
}

// Where the first difference is, and what the places after it say where nothing is known of it.
std::string told_by(const DiffResult& result) {
  const DiffResult::Node &bits = *result.first_bits, &kind = *result.first_kind;
  if (result.kind_before)
    return fmt::format(
        "before what was selected, at {}: {}; of the selection bits differ first at {}",
        where(kind), what_differs(kind), where(bits));
  if (result.unmeasured_before == 0) {
    std::string text = fmt::format("{}: {}", where(kind), what_differs(kind));
    if (bits.id != kind.id) text += "; bits differ first at " + where(bits);
    return text;
  }
  return fmt::format(
      "{} has the first other bits, and by {} at the latest it is no noise: {}; how far apart {} "
      "rows before that are was not kept: --keep full tells",
      where(bits), where(kind), what_differs(kind), result.unmeasured_before);
}

std::string other_bits(const DiffResult& result) {
  const int64_t other = result.rows - result.equal;
  return fmt::format("{} of {} rows {} other bits, first at {}", other, result.rows,
                     other == 1 ? "has" : "have", where(*result.first_bits));
}

// Says which rows no verdict rests on, as only one of the two shows them; "": none.
std::string not_common(const DiffResult& result) {
  const int64_t alone = result.only_a + result.only_b - result.more_a - result.more_b;
  if (alone == 1) return "; 1 row is in one trace only, and was not compared";
  return alone > 0 ? fmt::format("; {} rows are in one trace only, and were not compared", alone)
                   : "";
}

// "1 token was", "3 tokens were".
std::string count_fed(int64_t tokens) {
  return fmt::format("{} token{}", tokens, tokens == 1 ? " was" : "s were");
}

// Says what no verdict rests on where both were found right, as one of the two alone computed it;
// "": nothing.
std::string fed_to_one(const DiffResult& result) {
  const int64_t more = result.more_a + result.more_b;
  return more > 0 ? fmt::format("; {} fed in one trace only, and not compared", count_fed(more))
                  : "";
}

// Says what makes them no runs of the same thing; "": nothing.
std::string other_run(const DiffResult& result) {
  if (!result.structure.empty()) return result.structure.front();
  const int64_t more = result.more_a + result.more_b;
  return more > 0 ? count_fed(more) + " fed in one trace only" : "";
}

std::string text_of_flips(const DiffResult& result) {
  if (result.flips.empty()) return "";
  const DiffResult::Flip& first = result.flips.front();
  return fmt::format(
      "; {} leave{} by a near tie, the first at position {}, and {} not compared "
      "from there: --force-from compares on",
      result.flips.size() == 1 ? fmt::format("request {}", first.request)
                               : fmt::format("{} requests", result.flips.size()),
      result.flips.size() == 1 ? "s" : "", first.position, result.flips.size() == 1 ? "is" : "are");
}

// Why nobody can tell whether it is noise, and what would tell; "": it can be told.
std::string why_unknown(const DiffResult& result) {
  if (result.first_doubt)
    return fmt::format(
        "by their digests they are likely to be {:.2g} apart at {}, noise {:.2g}: "
        "--keep full tells",
        result.first_doubt->relative, where(*result.first_doubt), result.first_doubt->limit);
  for (const DiffResult::Flip& flip : result.flips) {
    const std::string at = fmt::format("request {} at position {}", flip.request, flip.position);
    if (flip.cause == DiffResult::Flip::Cause::drawn)
      return fmt::format("{} drew another token of other logits: --model DIR tells", at);
    if (flip.cause == DiffResult::Flip::Cause::unknown)
      return fmt::format("{} chose another {} by numbers that were not kept: --keep full tells", at,
                         flip.layer < 0 ? "token" : "expert");
  }
  if (result.unmeasured > 0)
    return fmt::format("how far apart {} of them are was not kept: --keep full tells",
                       result.unmeasured);
  return "";
}

void conclude(DiffResult& result, DiffResult::Verdict verdict, std::string story) {
  result.verdict = verdict;
  result.story = std::move(story);
}

// Says what the verdict leaves open: an op may be wrong by as much as noise explains.
std::string beneath_noise(const DiffResult& result) {
  if (!result.furthest) return "";
  const DiffResult::Node& node = *result.furthest;
  return fmt::format(
      "; the furthest, {}, request {}, is {:.2g} apart, noise {:.2g}, and whether that is an error "
      "only a judgement tells (--model DIR)",
      text_of(node.id.place), node.id.request, node.relative, node.limit);
}

// There are rows with other bits, or other tokens, and nothing is known that is no noise.
void conclude_of_noise(DiffResult& result) {
  const std::string bits = result.first_bits
                               ? other_bits(result)
                               : fmt::format("{} rows have the same bits", result.rows);
  if (const std::string unknown = why_unknown(result); !unknown.empty())
    return conclude(result, DiffResult::Verdict::inconclusive, bits + "; " + unknown);
  const char* of_digests = result.by_digest > 0 ? ", as far as digests tell" : "";
  conclude(result, DiffResult::Verdict::noise,
           fmt::format("{}, none further apart than two right engines may be{}{}{}", bits,
                       of_digests, beneath_noise(result), text_of_flips(result)));
}

// The first point whose contract is another one; null: none.
const Point* first_other_contract(const DiffResult::Judgement& a, const DiffResult::Judgement& b) {
  for (const Point& point : kPoints) {
    const auto of_a = a.contracts.find(std::string(point.name)),
               of_b = b.contracts.find(std::string(point.name));
    if (of_a != a.contracts.end() && of_b != b.contracts.end() && of_a->second != of_b->second)
      return &point;
  }
  return nullptr;
}

// Where the ways of two right runs part, and what that costs.
std::string how_they_part(const DiffResult& result) {
  std::string text;
  const DiffResult::Judgement &a = result.judged[0], &b = result.judged[1];
  if (const Point* point = first_other_contract(a, b)) {
    const std::string name(point->name);
    text += fmt::format("; their contracts part at {} ({} / {})", name, a.contracts.at(name),
                        b.contracts.at(name));
  }
  if (result.first_bits) text += "; bits differ first at " + where(*result.first_bits);
  if (!result.flips.empty())
    text += fmt::format("; the first other token is of request {} at position {}",
                        result.flips.front().request, result.flips.front().position);
  if (result.logits)
    text += fmt::format("; that costs a mean KL of {:.2g} over {} rows of logits (worst {:.2g})",
                        result.logits->kl_mean, result.logits->rows, result.logits->kl_max);
  return text;
}

// Where one of the two is right and the other is not, that decides, whatever the comparison said.
void conclude_of_judgements(DiffResult& result) {
  const DiffResult::Judgement &a = result.judged[0], &b = result.judged[1];
  const bool right_a = a.verdict == RunVerdict::clean, right_b = b.verdict == RunVerdict::clean;
  if (right_a && right_b) {
    // A flip of either trace is judged there. What was asked of the two runs remains.
    if (!result.structure.empty()) return;
    return conclude(result, DiffResult::Verdict::noise,
                    fmt::format("both are right, each under its own contract{}{}{}",
                                how_they_part(result), fed_to_one(result), not_common(result)));
  }
  if (right_a == right_b) return;
  const DiffResult::Judgement& wrong = right_a ? b : a;
  if (wrong.verdict != RunVerdict::diverged) return;
  conclude(result, DiffResult::Verdict::different,
           fmt::format("{} introduces an error, and {} does not: {}", wrong.trace,
                       right_a ? a.trace : b.trace, wrong.story));
}

// Whichever way they are alike or not.
void say_that_both_are_wrong(DiffResult& result) {
  const auto is_wrong = [](const DiffResult::Judgement& of) {
    return of.verdict == RunVerdict::diverged && of.first;
  };
  if (result.judged.size() != 2 || !std::ranges::all_of(result.judged, is_wrong)) return;
  const Place &a = *result.judged[0].first, &b = *result.judged[1].first;
  result.story += fmt::format(
      "; neither is right: {}",
      a == b ? fmt::format("the first error of both is at {}", text_of(a))
             : fmt::format("the first errors are at {} and at {}", text_of(a), text_of(b)));
}

}  // namespace

void summarise(DiffResult& result, const std::string& broken) {
  using enum DiffResult::Verdict;
  if (result.rows == 0)
    return conclude(result, inconclusive,
                    "nothing was compared: the two traces have no row of the selection in common");
  if (result.first_kind) {
    conclude(result, different, told_by(result));
  } else if (!broken.empty()) {
    conclude(
        result, inconclusive,
        fmt::format("nothing differs by more than noise in {} rows, but {}", result.rows, broken));
  } else if (const std::string other = other_run(result); !other.empty()) {
    conclude(result, different, other);
    if (result.first_bits) result.story += "; bits differ first at " + where(*result.first_bits);
  } else if (result.first_bits || !result.flips.empty()) {
    conclude_of_noise(result);
  } else {
    conclude(result, identical,
             fmt::format("all {} rows{} have the same bits", result.rows,
                         not_common(result).empty() ? "" : " that both have"));
  }
  result.story += not_common(result);
}

void put_judgements(DiffResult& result, std::vector<DiffResult::Judgement> judged) {
  result.judged = std::move(judged);
  const bool compared = result.rows > 0 && result.verdict != DiffResult::Verdict::identical;
  if (compared && result.judged.size() == 2) conclude_of_judgements(result);
  say_that_both_are_wrong(result);
}

int exit_status(const DiffResult& result) {
  if (result.verdict == DiffResult::Verdict::inconclusive) return 2;
  return result.verdict == DiffResult::Verdict::different ? 1 : 0;
}

}  // namespace lockstep
