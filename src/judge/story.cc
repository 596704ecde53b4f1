// Sentences of a judgement. A story is the whole result in one sentence, made of what is known and
// in the order in which it matters: a reference that contradicts itself voids everything else; then
// findings; then what could not be judged; only what is left is clean. "Clean" names its bounds.
//
// The text of a finding says its place in the run, the worst element, its size in budgets, and the
// rule that its wrong elements follow; reports show the same text wherever they name the finding.
#include "src/judge/story.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "kernels/base/check.h"
#include "src/judge/ledger.h"
#include "src/judge/pass_view.h"

namespace lockstep {
namespace {

constexpr double kUncountable = 1e9;
constexpr std::string_view kWrong = "wrong: ";  // before where the wrong elements of a rule are

int64_t count_of(const Result& result, Verdict verdict) { return result.counts[verdict]; }

// How even the closest choice of a token was, and whether any went the other way.
std::string tokens_story(const Result& result) {
  if (!result.logits) return "";
  const LogitsSummary& logits = *result.logits;
  const int64_t flips = logits.compared - logits.argmax_equal;
  std::string text =
      fmt::format("; smallest top-2 logit margin {:.3g} ulp", logits.least_margin_ulp);
  if (flips == 0) return text + ", no token differs from the fp64 model's";
  if (flips == logits.explained_flips)
    return text +
           fmt::format(", so {} of {} tokens differ as rounding allows", flips, logits.compared);
  return text + fmt::format(", {} of {} tokens differ, {} by more than rounding explains", flips,
                            logits.compared, flips - logits.explained_flips);
}

// Says what the nodes are a selection of, and by which contracts they were judged where nobody had
// said so.
std::string scope_story(const Scope& scope) {
  std::string text;
  if (!scope.selection.empty())
    text += fmt::format(" of the selection '{}' alone", scope.selection);
  if (!scope.rows.all()) text += fmt::format(", of which {} were judged", text_of(scope.rows));
  std::map<std::string, std::vector<std::string>> found;  // points by contract
  for (const std::string& point : scope.found) {
    const std::string& contract = scope.contracts.at(point);
    if (contract != "fused") found[contract].push_back(point);
  }
  if (scope.found.empty()) return text;
  text += ", each op under the rounding contract that was found for it";
  const char* before = " (";
  for (const auto& [contract, points] : found) {
    text += fmt::format("{}{}: {}", before, contract, fmt::join(points, " "));
    before = ", ";
  }
  return text + (found.empty() ? " (fused)" : ", the others fused)");
}

// The first token that is not the fp64 model's, led back to what made it so.
std::string flip_story(const Result& result) {
  const RequestResult* at = nullptr;
  const Flip* first = nullptr;
  for (const RequestResult& request : result.requests)
    for (const Flip& flip : request.flips)
      if (!flip.ancestor.empty() && (!first || flip.position < first->position))
        at = &request, first = &flip;
  if (!first) return "";
  return fmt::format("; first token that differs: request {}, position {}, {} instead of {}",
                     at->id, first->position, first->engine, first->reference) +
         (first->ancestor == text_of(result.first->node.place) ? "" : ", from " + first->ancestor);
}

// The first finding, what came of it, and how much only passes its error on.
std::string diverged_story(const Result& result) {
  const Finding& first = *result.first;
  std::string text = fmt::format("{}: {}", where_it_begins(first), text_of(first));
  if (const size_t more = result.findings.size() - 1; more > 0)
    text += fmt::format("; {} more finding{}", more, more > 1 ? "s" : "");
  text += flip_story(result);
  if (const int64_t passed_on = count_of(result, Verdict::propagated); passed_on > 0)
    text += fmt::format("; {} after it only {} an error on",
                        passed_on == 1 ? "1 node" : fmt::format("{} nodes", passed_on),
                        passed_on == 1 ? "passes" : "pass");
  if (const int64_t unclear = count_of(result, Verdict::confounded); unclear > 0)
    text += fmt::format("; {} wrong by it or by {}, which cannot be told",
                        unclear == 1 ? "1 is" : fmt::format("{} are", unclear),
                        unclear == 1 ? "itself" : "themselves");
  return text;
}

// How much was judged, why not all of it, and what else stands against calling it clean.
std::string inconclusive_story(const Result& result, const Inconclusive& inconclusive) {
  if (result.expected == 0 && result.hidden > 0)
    return fmt::format(
        "Nothing was judged: the {} nodes of the selection are not seen, but judged with those "
        "that read them, which the notes name: select these",
        result.hidden);
  if (result.expected == 0 && result.scope.requests > 0)
    return fmt::format(
        "Nothing was judged: no pass has any of {}, so widen the selection (`lockstep points` says "
        "what is where)",
        result.scope.selection.empty() ? "the places of the model" : result.scope.selection);
  if (result.expected == 0)
    return "Nothing was judged: 0 nodes were expected, so widen the selection or give a trace with "
           "passes";
  if (result.judged == 0)
    return fmt::format("Nothing was judged: 0 of {} nodes could be{}", result.expected,
                       inconclusive.reason.empty() ? "" : ", because " + inconclusive.reason);
  std::string text = fmt::format("No bug among {} of {} nodes", result.judged, result.expected);
  if (result.judged < result.expected)
    text += "; the others could not be judged: " + inconclusive.reason;
  else if (!inconclusive.complete)
    text += ", but the trace lacks a part of its run";
  if (!inconclusive.unexplained.empty())
    text += fmt::format("; {}, so an op that was not {} is wrong: let all be {}",
                        inconclusive.unexplained, result.hidden > 0 ? "recorded" : "judged",
                        result.hidden > 0 ? "recorded" : "judged");
  if (!inconclusive.undecided.empty()) text += "; but " + inconclusive.undecided;
  if (!inconclusive.divided.empty())
    text += fmt::format(
        "; but {} rounds in two ways, and the layers judged do not say which of them are wrong, if "
        "any: see the notes",
        inconclusive.divided);
  return text;
}

// Says how well the rule fits; empty where it does entirely.
std::string fit_of(const ShapeRule& shape) {
  std::string text;
  if (shape.precision < 1)
    text += fmt::format(" ({:.0f} % of the elements there", std::floor(100 * shape.precision));
  if (shape.recall < 1)
    text += fmt::format("{}{:.0f} % of all wrong ones", shape.precision < 1 ? ", " : " (",
                        std::floor(100 * shape.recall));
  return text.empty() ? text : text + ")";
}

// The index of a row of attn.kv has its second axis by its name.
std::string index_text(const Finding& f) {
  const bool of_cache = f.node.place.point && f.node.place.point->is_cache() && f.index.size() == 4;
  if (!of_cache) return fmt::format("{}", fmt::join(f.index, ", "));
  return fmt::format("{}, {}, {}, {}", f.index[0], f.index[1] == 0 ? "K" : "V", f.index[2],
                     f.index[3]);
}

}  // namespace

std::string budgets_text(double budgets) {
  return budgets >= kUncountable && std::isfinite(budgets) ? "over 1e9" : ratio_text(budgets);
}

std::string ratio_text(double ratio) {
  for (int digits = 3;; ++digits) {
    const std::string text = fmt::format("{:.{}g}", ratio, digits);
    if (text != "1" || ratio == 1 || digits >= std::numeric_limits<double>::max_digits10)
      return text;
  }
}

std::string stretch_text(const Finding& f) {
  const std::string place = text_of(f.node.place);
  if (f.region.empty()) return place;
  const Place& from = f.region.front();
  return fmt::format("{} .. {}", text_of(from),
                     from.layer == f.node.place.layer ? f.node.place.point->name : place);
}

bool is_missing(const Finding& finding) {
  return finding.verdict == Verdict::structural && finding.rule == kMissingTensor;
}

bool passes_on(const Finding& finding) {
  return finding.verdict == Verdict::nonfinite && finding.rule.starts_with(kPassedOn);
}

bool has_numbers(const Finding& f) {
  return f.index.size() > 1 || (!f.index.empty() && f.statistic && !f.node.place.point->is_cache());
}

int digits_apart(double want, double got) {
  constexpr int kUsual = 6, kMost = std::numeric_limits<double>::max_digits10;
  int digits = kUsual;
  const auto text = [&](double x) { return fmt::format("{:.{}g}", x, digits); };
  if (want != got)
    while (digits < kMost && text(want) == text(got)) ++digits;
  return digits;
}

std::string where_it_begins(const Finding& first) {
  const std::string where = stretch_text(first);
  if (first.verdict == Verdict::introduced) return where + " introduces the first error";
  if (is_missing(first)) return where + " is the first whose tensor is missing";
  if (first.verdict == Verdict::structural)
    return where + " is the first that is not as the model has it";
  // The op made of its inputs what it should, and these were not judged.
  if (passes_on(first))
    return where + " is the first to read NaN or Inf, and nobody judged who made it";
  if (std::isfinite(first.got) && !std::isfinite(first.want))
    return fmt::format("{} is the first to have a number where {} was wanted", where,
                       std::isnan(first.want) ? "NaN"
                       : first.want < 0       ? "-Inf"
                                              : "Inf");
  return where + " is the first to make NaN or Inf";
}

// The ops besides its own that the error may be of.
std::string region_text(const Finding& f) {
  std::vector<std::string_view> names;
  for (const Place& hidden : f.region) {
    const bool elsewhere = hidden.layer != f.node.place.layer;
    if (!elsewhere) names.push_back(hidden.point->name);
  }
  if (f.region.empty()) return "";
  const size_t others = f.region.size() - names.size();
  return fmt::format("it or what it is judged with and no verdict clears ({}{}{})",
                     fmt::join(names, " "), names.empty() || others == 0 ? "" : ", ",
                     others > 0 ? fmt::format("{} of other layers", others) : "");
}

std::string rule_of(const Finding& f) {
  if (!f.shape) return f.rule;
  return fmt::format("{}{}{}{}{}", f.rule, f.rule.empty() ? "" : "; ", kWrong, f.shape->where,
                     fit_of(*f.shape));
}

void split_rule(Finding& f) {
  if (!f.shape) return;
  const size_t at = f.rule.rfind(kWrong);
  const std::string fit = fit_of(*f.shape);
  check(at != std::string::npos && f.rule.ends_with(fit),
        "the rule of a finding with a precision was wanted to say which elements are wrong, found "
        "'{}'",
        f.rule);
  f.shape->where = f.rule.substr(at + kWrong.size());
  f.shape->where.resize(f.shape->where.size() - fit.size());
  f.rule.resize(at >= 2 ? at - 2 : 0);  // without the semicolon between the two
}

std::string text_of(const std::vector<Finding::LooksLike>& looks_like) {
  std::string text;
  for (const Finding::LooksLike& like : looks_like)
    text +=
        fmt::format("{}{} (explains {} of {} elements, {} of {} nodes)", text.empty() ? "" : " or ",
                    like.says, like.elements, like.of_elements, like.nodes, like.of_nodes);
  return text;
}

std::string text_of(const Finding& f) {
  std::string text = region_text(f);
  if (!text.empty()) text += "; ";
  text += fmt::format("request {}, position {}", f.node.request, f.position);
  if (!f.index.empty()) text += fmt::format(", index [{}]", index_text(f));
  // Where the number of budgets says little, the size says how bad it is, however small.
  const bool many = f.budgets >= kUncountable;
  if (has_numbers(f)) {
    const int digits = digits_apart(f.want, f.got);
    text += fmt::format(", want {:.{}g}, got {:.{}g}", f.want, digits, f.got, digits);
  }
  if (f.of_row >= 0.001 || (f.of_row > 0 && many))
    text += fmt::format(" ({:.2g} x the size of its row)", f.of_row);
  if (f.statistic && std::isfinite(f.budgets))
    text += fmt::format(", {} budgets ({})", budgets_text(f.budgets), name_of(*f.statistic));
  if (const std::string rule = rule_of(f); !rule.empty()) text += "; " + rule;
  return text;
}

void summarise(Result& result, const Inconclusive& inconclusive) {
  if (!inconclusive.suspicion.empty()) {
    result.verdict = RunVerdict::inconclusive;
    result.story =
        fmt::format("The reference contradicts itself {}: believe no finding, and report it",
                    inconclusive.suspicion);
    return;
  }
  if (!result.findings.empty()) {
    result.verdict = RunVerdict::diverged;
    result.story = diverged_story(result);
    return;
  }
  if (result.judged == 0 || result.judged < result.expected || !inconclusive.none()) {
    result.verdict = RunVerdict::inconclusive;
    result.story = inconclusive_story(result, inconclusive);
    return;
  }
  result.verdict = RunVerdict::clean;
  const int64_t overflowing = count_of(result, Verdict::nonfinite);
  std::string but;
  if (overflowing > 0)
    but = fmt::format(", {} of which overflow as their exact results do", overflowing);
  if (result.hidden > 0)
    but +=
        fmt::format(", {} that were not recorded judged with those that read them", result.hidden);
  if (result.excluded > 0)
    but += fmt::format(", but for {} elements that are no numbers and that no op made so",
                       result.excluded);
  result.story = fmt::format("No bug: {} of {} nodes within rounding{}{}{}", result.judged,
                             result.expected, scope_story(result.scope), but, tokens_story(result));
}

}  // namespace lockstep
