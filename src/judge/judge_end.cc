// The end of a judgement: contracts, tokens, and what is said. judge_pools.cc asks what no single
// node shows.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "src/judge/judge_state.h"
#include "src/judge/own_engine.h"
#include "src/judge/story.h"
#include "traces/manifest.h"

namespace lockstep {
namespace {

// The text of how large a bug must be to show in a region of that point.
std::string shown_from(const Point& p, const OpJudge::Width& width) {
  if (row_of(p.op).makes_indices)
    return fmt::format(
        "a wrong choice shows where the values differ by {:.1g} x the size of their row",
        width.of_row);
  return fmt::format(
      "its budget is up to {:.2g} times that of its own op; a wrong element shows "
      "from {:.1g} x the size of its row on",
      width.times, width.of_row);
}

// A product with zeros is right whatever its other factor is. They are no error where the exact
// result is rounded to 0, as that of a small number in fp16 is. An op that reads zeros is not
// named, nor is one that a finding is about, nor sines of a run at position 0, which RunCoverage
// knows.
void note_zeros(const Graph& graph, Ledger& ledger) {
  const std::vector<Place> zeros = ledger.places_of_zeros();
  const auto is_zero = [&](const Place& place) { return std::ranges::count(zeros, place) > 0; };
  for (const Point& p : kPoints) {
    std::vector<Place> made;  // of zeros, by an op that reads other numbers
    for (const Place& place : zeros)
      if (*place.point == p && p.op != OpKind::angles &&
          !ledger.any_finding_at(int64_t{graph.index_of(place)}) &&
          std::ranges::none_of(graph.inputs_of(place), is_zero))
        made.push_back(place);
    if (made.empty()) continue;
    const size_t more = made.size() - 1;
    ledger.note(fmt::format(
        "{} is 0 in every element{}: nothing that multiplies it was tested", text_of(made.front()),
        more == 0 ? "" : fmt::format(", as in {} more layer{}", more, more == 1 ? "" : "s")));
  }
}

}  // namespace

// Tokens that differ where no op is at fault. With an op at fault they follow from it; and where
// not every op was judged, or an overflow is due, perhaps from that. Hidden ops too may be wrong by
// less than shows in their regions.
void Judge::State::judge_choices() {
  // An op at fault explains every token after it.
  if (ledger.any_finding()) return;
  const bool of_all = options.selection.is_everything() && ledger.main_reason().empty() &&
                      overflowing.empty() && op_judge.widened_by().empty();
  const double scale = options.limit_scale;
  for (const LogitsComparison::Doubt& doubt : logits.doubts()) {
    const Statistic& statistic = doubt.statistic;
    if (of_all) ledger.limit_ratio(statistic.limit_ratio());
    if (statistic.passes(scale)) continue;
    if (!of_all) {
      unexplained = statistic.slice;
      return;
    }
    ledger.regrade(
        index_of({&point("token"), -1}), doubt.pass, doubt.row.request,
        {.node = {.place = {&point("token"), -1}, .pass = doubt.pass, .request = doubt.row.request},
         .position = doubt.row.position,
         .verdict = Verdict::introduced,
         .statistic = statistic.kind,
         .value = statistic.value,
         .limit = statistic.limit * scale,
         .budgets = statistic.limit_ratio(),
         .rule = "no op is over its budget, but " + statistic.slice});
    return;
  }
}

void Judge::State::judge_contracts() {
  for (const auto& [place, sentence] : op_judge.contracts().inconsistent_layers())
    ledger.regrade_all(
        index_of(place),
        {.verdict = Verdict::introduced, .statistic = StatisticKind::contract, .rule = sentence});
  for (size_t i = 0; i < ledger.places().size(); ++i) {
    const OtherContracts tried = op_judge.other_contracts(ledger.places()[i]);
    const std::optional<RoundingContract> other = tried.that_fits();
    if (!other) continue;
    // Where what it reads is hidden, each rounding on the way may turn, which allows other errors.
    const bool wide =
        tried.says_nothing() || !op_judge.hidden().region_of(ledger.places()[i]).empty();
    const std::string all =
        tried.tried == 1 ? "the one node" : fmt::format("all {} nodes", tried.tried);
    ledger.explain(i,
                   fmt::format("{3} {0} ({1} tried): --rounding {2}={0}", name_of(*other), all,
                               ledger.places()[i].point->name, wide ? kWithinWider : kWouldPassAs));
  }
  const auto linear = op_judge.contracts().of(point("logits"));
  if (linear == RoundingContract::tf32 && manifest.dtype == DType::f32)
    ledger.note(fmt::format("linear ops round their operands to tf32, as {}",
                            options.accumulator ? "was asked for" : "the trace declares"));
  if (options.contracts || !options.rounding.empty())
    ledger.note(
        "judged under the rounding contracts that were asked for, whatever the trace "
        "declares");
  for (const auto& [point, sentence] : op_judge.contracts().divided()) {
    ledger.note(sentence);
    // One of shares that fits as many layers as not is what few keys look like, and one of a rope
    // what few positions turn.
    if (!point->is_of_shares() && point->op != OpKind::rope && divided.empty())
      divided = point->name;
  }
}

// One rule a place, shared by its findings.
void Judge::State::find_shapes(Result& result) const {
  std::vector<std::pair<Place, std::optional<ShapeRule>>> known;
  for (Finding& finding : result.findings) {
    if (!error_map.has(finding)) continue;
    const auto same = [&](const auto& entry) { return entry.first == finding.node.place; };
    auto at = std::ranges::find_if(known, same);
    if (at == known.end())
      at = known.insert(at, {finding.node.place, error_map.rule_of(finding.node.place)});
    finding.shape = at->second;
  }
  if (result.first) result.first = result.findings.front();
}

// Collects what the verdict is about, and what it takes for granted.
Scope Judge::State::scope_of(const DrawReplay::Outcome& drawn) const {
  Scope scope{.layers = manifest.graph.layers(),
              .selection = options.selection.text(),
              .rows = op_judge.judged_rows(),
              .positions = coverage.longest(),
              .requests = coverage.requests(),
              .asked = options.asked,
              .references_checked = reference_check.checked()};
  for (const auto& [point, contract] : op_judge.contracts().found()) {
    scope.contracts[std::string(point->name)] = name_of(contract);
    scope.found.push_back(std::string(point->name));
  }
  for (const Place& place : ledger.places()) {
    const OpKind op = place.point->op;
    if (op == OpKind::cache || row_of(op).makes_indices ||
        scope.contracts.contains(std::string(place.point->name)))
      continue;
    scope.contracts[std::string(place.point->name)] = name_of(op_judge.candidates(place).front());
  }
  scope.given.push_back("weights as the checkpoint's one reader has them");
  if (!manifest.graph.has({&point("rope.cos")}))
    scope.given.push_back(
        "rotary angles, which the trace does not show: held to the reference's own "
        "within what fp32 may be off");
  if (drawn.replayed < drawn.drawn)
    scope.given.push_back(fmt::format("the draws of {} of {} sampled tokens",
                                      drawn.drawn - drawn.replayed, drawn.drawn));
  int64_t adopted = 0;
  for (const auto& [request, positions] : history.adopted()) adopted += std::ssize(positions);
  if (adopted > 0)
    scope.given.push_back(fmt::format(
        "K and V of {} positions that no pass of the trace computes, as they were read", adopted));
  if (coverage.inherits())
    scope.given.push_back("which cached tokens a request begins with, as the trace names them");
  return scope;
}

std::map<std::string, double> Judge::State::limits() const {
  const double scale = options.limit_scale;
  return {{"T0", 0},
          {"T1", scale},
          {"T2_least", 1.10 * scale},
          {"T2_over_quantile", 1.05 * scale},
          {"T3_bf16", 0.02 * scale},
          {"T3_fp16", 0.10 * scale},
          {"T5_deviations", kGainDeviations * scale},
          {"T5_fp32_standard_errors", kGainStudent * scale},
          {"T6_notice", kGainDeviations},
          {"false_alarm_of_a_node", kFalseAlarm},
          {"false_alarm_of_a_place", kPooledFalseAlarm},
          {"lambda", kLambda},
          {"propagated_over_floor", kOverFloor}};
}

// A bug in a region shows from the width of its budget on.
void Judge::State::note_regions() {
  for (const Point& p : kPoints) {
    std::set<std::string_view> hidden;  // points of all layers' regions
    for (const Place& place : ledger.places())
      if (*place.point == p && options.selection.has(p, place.layer) &&
          ledger.any_judged_at(index_of(place)) && !op_judge.hidden().covers(place))
        for (const Place& h : op_judge.hidden().region_of(place)) hidden.insert(h.point->name);
    if (hidden.empty()) continue;
    const auto width = op_judge.widened_by().find(p.order());
    ledger.note(fmt::format("{} is judged together with {}, which the trace does not have: {}",
                            p.name, fmt::join(hidden, " "),
                            width == op_judge.widened_by().end() ? "they are known bit for bit"
                                                                 : shown_from(p, width->second)));
  }
  // An op that some nodes prove wrong is so, whatever its others leave open.
  std::vector<int> unclear;
  std::ranges::set_difference(led_back, wrong_by_itself, std::back_inserter(unclear));
  if (unclear.empty()) return;
  const size_t more = unclear.size() - 1;
  ledger.note(fmt::format(
      "{}{} over {} budget too, by what an error found before may have brought in an op that both "
      "read and the trace does not have: whether it has one of its own cannot be told until that "
      "is right",
      text_of(ledger.places()[unclear.front()]),
      more == 0 ? " is" : fmt::format(" and {} more are", more), more == 0 ? "its" : "their"));
}

std::vector<std::string> Judge::State::not_covered() const {
  std::vector<std::string> blind = coverage.not_covered();
  if (const JudgedRows& rows = op_judge.judged_rows(); !rows.all())
    blind.insert(blind.begin(),
                 fmt::format("bugs of few rows ({}; {}): a larger --judge-rows, or none",
                             text_of(rows), power_text(rows)));
  return blind;
}

// An engine stores a point in one dtype. Numbers of 16 bits alone among layers of fp32 were rounded
// by somebody, and are held to 16 bits there.
void Judge::State::note_mixed_dtypes() {
  for (const Point& p : kPoints) {
    if (!may_be_wider(p)) continue;
    std::vector<int> narrow, wide;
    for (size_t i = 0; i < ledger.places().size(); ++i)
      if (const Place& place = ledger.places()[i]; *place.point == p && ledger.any_judged_at(i))
        (op_judge.dtype_at(place) == DType::f32 ? wide : narrow).push_back(place.layer);
    if (wide.empty() || narrow.empty()) continue;
    ledger.note(fmt::format(
        "{} holds nothing but numbers of {} in layers {}, and of fp32 in others: it was rounded "
        "there, or by who dumped it",
        p.name, name_of(manifest.dtype), fmt::join(narrow, ", ")));
  }
}

void Judge::State::note_facts(bool complete) {
  const bool may_clamp = options.may_saturate && !is_own_engine(manifest);
  for (const auto& [place, nodes] : overflowing)
    ledger.note(fmt::format(
        "{} overflows in {} nodes, as its exact result does: {} as expected, and "
        "no finding",
        text_of(ledger.places()[place]), nodes,
        may_clamp ? "Inf there, or the largest number of an engine that clamps, is" : "nonfinite"));
  if (const DType of_table = op_judge.dtype_at({&point("rope.cos"), -1}); of_table != DType::f32)
    ledger.note(fmt::format(
        "rope.cos and rope.sin are rounded to {0}, as Hugging Face's and vLLM's are: they are held "
        "to that, and ropes to the numbers of the tables",
        name_of(of_table)));
  note_mixed_dtypes();
  note_zeros(manifest.graph, ledger);
  for (const std::string& note : routing.notes()) ledger.note(note);
  for (const auto& [request, positions] : history.adopted())
    ledger.note(
        fmt::format("positions {} to {} of request {} were in the cache before the trace begins: "
                    "what is read there is taken as given, and held to that from then on",
                    *positions.begin(), *positions.rbegin(), request));
  if (const int64_t copies = history.copies(); copies > 0)
    ledger.note(fmt::format(
        "{} of the rows of layers so taken hold other bits than others had for the same tokens: "
        "copies of a page may, and which of them is right is not known",
        copies));
  if (const std::string note = coverage.without_cache(); !note.empty()) ledger.note(note);
  if (with_shares > 0 && without_shares > 0)
    ledger.note(fmt::format(
        "attention is in shares in {} of {} passes: those of the others are not expected, and "
        "their attn.out is judged as always",
        with_shares, with_shares + without_shares));
  for (const int order : unseen_shares)
    ledger.note(fmt::format(
        "no pass has {}, though the trace's graph does: an error of it is seen in attn.out alone",
        kPoints[order].name));
  if (const int64_t later = ledger.later_of_equals(); later > 0)
    ledger.note(fmt::format(
        "{} not the first of several equal logits, the largest: nothing is wrong with that, but an "
        "engine that takes the first goes on with another text",
        later == 1 ? "1 token is" : fmt::format("{} tokens are", later)));
  note_regions();
  if (!options.rows.all() && exact == nullptr)
    ledger.note(
        "no model was computed beside the engine, as it needs all rows: which errors are passed on "
        "and which tokens differ was not asked");
  if (!complete) ledger.note("the trace is incomplete");
}

// Lacking tensors, tokens and draws: all that is known only when no pass follows.
DrawReplay::Outcome Judge::State::enter_what_the_end_shows(
    const std::vector<RequestInfo>& requests) {
  // Where this run leaves places out, a finding about one of them stands by itself, and so does one
  // of a row that a pass should not have, and one about a place that is judged with those that read
  // it, as its own nodes are in no count. What others left out may be no run at all.
  const bool left_out = !options.selection.is_everything() ||
                        (is_own_engine(manifest) && !manifest.selection.empty());
  const auto regrade = [&](const Finding& finding, bool by_itself) {
    if (!ledger.regrade(index_of(finding.node.place), finding.node.pass, finding.node.request,
                        finding) &&
        by_itself)
      ledger.stray(finding);
  };
  for (const Finding& finding : unrecorded)
    if (op_judge.has_seen(*finding.node.place.point)) regrade(finding, false);
  for (const Finding& finding : flow.wrong_tokens(requests))
    regrade(finding, left_out || op_judge.hidden().covers(finding.node.place));
  for (const Finding& finding : flow.unnamed_choices(requests)) regrade(finding, false);
  for (const Finding& finding : wrong_top_logits) {
    regrade(finding, true);
    // A choice differs by the op that made it where its logits have nothing wrong behind them.
    if (*finding.node.place.point == point("token"))
      logits.lead_back(finding.node.request, {{finding.node.request, finding.position}}, "token");
  }
  DrawReplay::Outcome drawn = draws.outcome(requests);
  for (const Finding& finding : drawn.findings) regrade(finding, left_out);
  return drawn;
}

// In this order: contracts, passes that waited for them, what only the end shows (tokens, draws,
// pools of nodes), notes, and the story. Each step may add findings that the next ones count.
Result Judge::State::finish(const std::vector<RequestInfo>& requests, bool complete) {
  op_judge.decide_contracts(ledger.places());
  for (Judged& judged : waiting) {
    settle(judged);
    end(judged);
  }
  flow.finish(requests);
  const DrawReplay::Outcome drawn = enter_what_the_end_shows(requests);
  for (size_t i = 0; i < ledger.places().size(); ++i) judge_pool(i);
  for (const Point& point : kPoints) judge_point(point);
  judge_contracts();
  judge_choices();
  note_facts(complete);
  Result result = ledger.result();
  for (const Finding& finding : result.findings)
    if (*finding.node.place.point == point("token") && finding.verdict == Verdict::introduced &&
        finding.statistic != StatisticKind::flips && finding.statistic != StatisticKind::divergence)
      logits.choose_wrongly({finding.node.request, finding.position});
  find_shapes(result);
  result.logits = logits.summary();
  for (const RequestInfo& info : requests)
    result.requests.push_back({.id = info.id,
                               .name = info.name,
                               .prompt = info.prompt,
                               .tokens = info.tokens,
                               .argmax = info.argmax,
                               .flips = logits.flips(info.id),
                               .margins = logits.margins(info.id)});
  result.provenance = manifest.provenance;
  result.provenance.emplace("compute_dtype", name_of(manifest.dtype));
  result.provenance["limits"] = options.limits.name();
  result.limits = limits();
  result.blind = not_covered();
  const double largest = result.scope.largest;
  result.scope = scope_of(drawn);
  if (drawn.replayed < drawn.drawn)
    result.notes.push_back(fmt::format(
        "{} of {} drawn tokens are taken as given: the trace does not show how they were drawn, or "
        "the logits that they were drawn from",
        drawn.drawn - drawn.replayed, drawn.drawn));
  result.scope.largest = largest;
  const std::string undecided =
      coverage.asks_for_logits() || !options.selection.has(point("logits"), -1)
          ? flow.undecided(requests)
          : "no pass asks for logits, so that nothing that chooses a "
            "token was judged";
  summarise(result, {.complete = complete,
                     .reason = ledger.main_reason(),
                     .unexplained = unexplained,
                     .undecided = complete ? undecided : std::string(),
                     .divided = divided,
                     .suspicion = reference_check.suspicion()});
  result.reached = op_judge.reached();
  // Limits are learnt from clean runs alone, else a bug would widen the limits that are to find it.
  if (options.learn && result.verdict == RunVerdict::clean)
    for (const auto& [op, reached] : result.reached)
      options.learn->learn(op, manifest.dtype, reached);
  return result;
}

}  // namespace lockstep
