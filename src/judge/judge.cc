#include "src/judge/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "kernels/check.h"
#include "probes/only.h"
#include "src/judge/blind.h"
#include "src/judge/budget.h"
#include "src/judge/error_map.h"
#include "src/judge/ledger.h"
#include "src/judge/logits.h"
#include "src/judge/op_judge.h"
#include "src/judge/story.h"
#include "src/judge/token_flow.h"

namespace lockstep {
namespace {

// A node is `propagated` when its error is over this many times what the same model in the run's
// dtype has there.
constexpr double kOverFloor = 3;

// A whole number that the trace says of its run; 0 when it says none.
int64_t number_of(const Manifest& manifest, const char* name) {
  const auto found = manifest.provenance.find(name);
  int64_t number = 0;
  if (found == manifest.provenance.end()) return 0;
  const std::string& text = found->second;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return std::max<int64_t>(number, 0);
}

// What the trace says, or the usual.
Accumulator accumulator_of(const Manifest& manifest) {
  const auto found = manifest.provenance.find("accumulator");
  return found == manifest.provenance.end() ? Accumulator::fp32 : accumulator_from(found->second);
}

double root_mean(double sum, int64_t count) {
  return count > 0 ? std::sqrt(sum / static_cast<double>(count)) : 0;
}

// Of a model, what a pass is compared with: that of which the pass has numbers. Caches are compared
// with the rows that were written to them.
Pass pass_of(ReferenceModel& model, const SeenPass& judged, const Selection& selection) {
  Pass pass;
  Recorder recorder({}, /*digests=*/false, [&](Pass seen) { pass = std::move(seen); });
  Only compared(recorder, [&](const Point& point, int layer) {
    const bool logits = point == lockstep::point("logits");  // tokens are explained by them
    if (point.op == OpKind::cache || !(logits || selection.has(point, layer))) return false;
    const KeptTensor* tensor = judged.tensor({&point, layer}, /*request=*/-1);
    return tensor != nullptr && !tensor->data.view().empty();
  });
  Probe probe(&compared);
  model.run(judged.info(), probe);
  check(probe.failure().empty(), "{}", probe.failure());
  return pass;
}

// A node whose tensor is missing, should its point turn out to be recorded elsewhere.
Finding missing_of(const NodeRows& node, const NodeOutcome& outcome, const Place& place) {
  return {.request = node.request,
          .position = node.rows.front().position,
          .pass = outcome.pass,
          .place = place,
          .verdict = Verdict::structural,
          .rule = kMissingTensor};
}

}  // namespace

struct Judge::State {
  State(const Manifest& manifest, Oracle& oracle, ReferenceModel* exact, ReferenceModel* rounded,
        JudgeOptions options);

  std::vector<Flag> judge(const Pass& pass);
  Result finish(const std::vector<RequestInfo>& requests, bool complete);

  void look_for_strays(const Pass& pass);
  void run_models(const SeenPass& seen);
  void remember_cache(const SeenPass& seen);
  void judge_place(size_t index, const JudgedPass& judged, std::vector<Flag>& flags);
  int source_of(size_t place, int32_t request) const;
  bool stems_from_overflow(size_t place, int32_t request) const;
  void judge_pool(size_t index);
  void judge_schemas();
  Accumulator accumulator() const { return options.accumulator.value_or(accumulator_of(manifest)); }
  void judge_choices();
  void find_shapes(Result& result) const;
  std::map<std::string, double> limits() const;

  Manifest manifest;
  Oracle& oracle;
  ReferenceModel* exact;
  ReferenceModel* rounded;
  JudgeOptions options;
  OpJudge op_judge;
  Ledger ledger;
  std::vector<std::vector<Place>> inputs;          // by place
  std::vector<std::vector<size_t>> input_indices;  // the same as indices of places
  KvHistory history{/*keep_bytes=*/true};
  TokenFlow flow;
  LogitsComparison logits;
  RunFacts facts;
  ErrorMap error_map;
  Pass exact_pass, rounded_pass;
  // Number of the first finding that a request's tensor at a place stems from, in this pass; and,
  // for what attention reads of earlier passes, by the place of attn.kv.
  std::map<std::pair<size_t, int32_t>, int> sources, cache_sources;
  // The same of an overflow that the exact result has too.
  std::set<std::pair<size_t, int32_t>> overflows, cache_overflows;
  std::map<size_t, int64_t> overflowing;  // nodes, by place
  std::string unexplained;                // what is wrong with tokens by no op that was judged
  // Nodes of points that no pass had shown yet: nothing is amiss where none ever does.
  std::vector<Finding> unrecorded;
};

Judge::State::State(const Manifest& manifest_, Oracle& oracle_, ReferenceModel* exact_,
                    ReferenceModel* rounded_, JudgeOptions options_)
    : manifest(manifest_),
      oracle(oracle_),
      exact(exact_),
      rounded(rounded_),
      options(std::move(options_)),
      op_judge(oracle_,
               {.dtype = manifest_.dtype,
                .page_size = number_of(manifest_, "page_size"),
                .limit_scale = options.limit_scale,
                .threads = options.threads,
                // Also the inputs of one op, kept before it ran.
                .partial = !manifest_.selection.empty() || manifest_.provenance.contains("before"),
                .schema = options.schema.value_or(manifest_.schema),
                .accumulator = accumulator(),
                .limits = options.limits}),
      ledger(manifest_.graph),
      logits(manifest_.dtype),
      facts(number_of(manifest_, "page_size"), number_of(manifest_, "sliding_window")),
      error_map(number_of(manifest_, "page_size")) {
  const Graph wanted = oracle.graph();
  check(wanted == manifest.graph,
        "the trace is of a model of {}, the checkpoint has {}: give the --model that the trace was "
        "made with",
        text_of(manifest.graph), text_of(wanted));
  check(
      (exact == nullptr) == (rounded == nullptr),
      "the models in fp64 and in the run's dtype are compared with each other: give both or none");
  const std::vector<Place>& places = ledger.places();
  for (const Place& place : places) {
    inputs.push_back(inputs_of(manifest.graph, place));
    std::vector<size_t>& indices = input_indices.emplace_back();
    for (const Place& input : inputs.back())
      indices.push_back(static_cast<size_t>(std::ranges::find(places, input) - places.begin()));
  }
}

void Judge::State::look_for_strays(const Pass& pass) {
  for (const KeptTensor& tensor : pass.tensors) {
    const Place place{tensor.point, tensor.layer};
    if (std::ranges::count(ledger.places(), place) > 0) continue;
    ledger.stray({.pass = pass.info.pass,
                  .place = place,
                  .verdict = Verdict::structural,
                  .rule = "the model has no such place"});
  }
}

void Judge::State::run_models(const SeenPass& seen) {
  exact_pass = rounded_pass = {};
  if (!exact) return;
  if (flow.continues()) {
    exact_pass = pass_of(*exact, seen, options.selection);
    rounded_pass = pass_of(*rounded, seen, options.selection);
    return;
  }
  exact = rounded = nullptr;
  ledger.note(
      fmt::format("the reference models stop at pass {}, whose positions do not continue "
                  "those before it: nothing later is found to be propagated",
                  seen.info().pass));
}

void Judge::State::remember_cache(const SeenPass& seen) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Place& place = ledger.places()[i];
    if (place.point->op != OpKind::cache) continue;
    const KeptTensor* k = seen.tensor(inputs[i].at(0), -1);
    const KeptTensor* v = seen.tensor(inputs[i].at(1), -1);
    const bool fit = k && v && !k->data.view().empty() && !v->data.view().empty() &&
                     k->rows == v->rows && k->shape == v->shape && k->dtype == v->dtype &&
                     k->shape.rank() == 3 && k->shape[0] == std::ssize(k->rows);
    if (fit) history.write(place.layer, k->rows, k->data, v->data);
  }
}

int Judge::State::source_of(size_t place, int32_t request) const {
  int first = -1;
  const auto take = [&](const auto& map, size_t at) {
    const auto found = map.find({at, request});
    if (found == map.end() || found->second < 0) return;
    if (first < 0 || found->second < first) first = found->second;
  };
  for (size_t input : input_indices[place]) take(sources, input);
  take(cache_sources, place);
  return first;
}

bool Judge::State::stems_from_overflow(size_t place, int32_t request) const {
  if (cache_overflows.contains({place, request})) return true;
  return std::ranges::any_of(input_indices[place], [&](size_t input) {
    return overflows.contains({input, request});
  });
}

void Judge::State::judge_place(size_t index, const JudgedPass& judged, std::vector<Flag>& flags) {
  const Place& place = ledger.places()[index];
  const std::vector<NodeRows>& nodes = judged.seen.nodes_of(*place.point);
  const bool selected = options.selection.has(*place.point, place.layer);
  std::vector<NodeOutcome> outcomes;
  if (selected) outcomes = op_judge.judge(place, inputs[index], judged);
  for (size_t n = 0; n < nodes.size(); ++n) {
    const int32_t request = nodes[n].request;
    int source = source_of(index, request);
    bool overflow = stems_from_overflow(index, request);
    if (selected) {
      NodeOutcome& outcome = outcomes[n];
      outcome.place = static_cast<int>(index);
      outcome.pass = judged.seen.info().pass;
      outcome.request = request;
      if (outcome.unrecorded) unrecorded.push_back(missing_of(nodes[n], outcome, place));
      if (place.point->op == OpKind::gather) flow.check_order(nodes[n], outcome);
      if (outcome.overflows) ++overflowing[index];
      // Inf and NaN that come of such an overflow are nobody's bug.
      if (outcome.passes_on && overflow && source < 0) outcome.verdict = Verdict::propagated;
      overflow = overflow || outcome.overflows;
      const ErrorSums& sums = outcome.sums;
      const bool fine = outcome.verdict == Verdict::bitwise || outcome.verdict == Verdict::rounding;
      if (fine && source >= 0 && sums.compared > 0 &&
          !within(root_mean(sums.total, sums.compared),
                  kOverFloor * root_mean(sums.floor, sums.compared))) {
        outcome.verdict = Verdict::propagated;
        outcome.ancestor = source;
      }
      error_map.add(judged.seen, place, outcome);
      const int finding = ledger.enter(std::move(outcome));
      if (finding >= 0) {
        source = finding;
        flags.push_back({place, request});
      }
    }
    sources[{index, request}] = source;
    if (overflow) overflows.insert({index, request});
    if (overflow && place.point->op == OpKind::cache) cache_overflows.insert({index, request});
    if (place.point->op == OpKind::cache) cache_sources[{index, request}] = source;
  }
}

std::vector<Flag> Judge::State::judge(const Pass& pass) {
  const SeenPass seen(pass, options.selection);
  facts.add(pass);
  error_map.begin(seen);
  flow.begin(pass);
  history.begin(pass.info);
  look_for_strays(pass);
  run_models(seen);
  remember_cache(seen);
  op_judge.begin_pass(seen);
  sources.clear();
  overflows.clear();
  std::vector<Flag> flags;
  const JudgedPass judged{seen, history, exact ? &exact_pass : nullptr,
                          rounded ? &rounded_pass : nullptr};
  for (size_t i = 0; i < ledger.places().size(); ++i) judge_place(i, judged, flags);
  const auto logits_of = [](const Pass& of) { return of.find(point("logits"), -1); };
  logits.add(logits_of(pass), logits_of(exact_pass), logits_of(rounded_pass));
  const auto at = std::ranges::find(ledger.places(), Place{&point("logits"), -1});
  const auto index = static_cast<size_t>(at - ledger.places().begin());
  for (const NodeRows& node : seen.nodes_of(point("logits")))
    if (const int source = sources.at({index, node.request}); source >= 0)
      logits.lead_back(node.request, node.rows, text_of(ledger.place_of_finding(source)));
  return flags;
}

// Tokens that differ where no op is at fault. With an op at fault, or an overflow that is due, they
// follow from it; and where not every op was judged, from one of the others.
void Judge::State::judge_choices() {
  if (ledger.any_finding() || !overflowing.empty()) return;
  const bool of_all = options.selection.is_everything() && ledger.main_reason().empty();
  const auto at = std::ranges::find(ledger.places(), Place{&point("logits"), -1});
  const double scale = options.limit_scale;
  for (const Statistic& statistic : logits.statistics()) {
    if (of_all) ledger.strain(statistic.strain());
    if (statistic.passes(scale)) continue;
    if (!of_all) {
      unexplained = statistic.slice;
      return;
    }
    ledger.regrade_all(static_cast<int>(at - ledger.places().begin()),
                       {.verdict = Verdict::introduced,
                        .statistic = statistic.name,
                        .value = statistic.value,
                        .limit = statistic.limit * scale,
                        .budgets = statistic.strain(),
                        .rule = "no op is over its budget, but " + statistic.slice});
    return;
  }
}

// What no single node shows: the nodes of a place together.
void Judge::State::judge_pool(size_t index) {
  const Place& place = ledger.places()[index];
  const Moments pool = op_judge.pooled(place);
  const double scale = options.limit_scale;
  std::vector<Statistic> statistics = pool.statistics(manifest.dtype);
  tighten(statistics, options.limits.of(place.point->op, manifest.dtype));
  for (const Statistic& statistic : statistics) ledger.strain(statistic.strain());
  for (const Statistic& statistic : statistics) {
    if (statistic.passes(scale)) continue;
    ledger.regrade_all(static_cast<int>(index),
                       {.verdict = Verdict::introduced,
                        .statistic = statistic.name,
                        .value = statistic.value,
                        .limit = statistic.limit * scale,
                        .budgets = statistic.value / statistic.limit,
                        .rule = "all passes together: " + statistic.slice});
    return;
  }
  if (pool.misrounds < 1 && !within(std::fabs(pool.offset_deviations()), kGainDeviations))
    ledger.note(
        fmt::format("{} is on average {:.3g} standard deviations of its {} elements too {} "
                    "(T6), as by truncation; no limit minds",
                    text_of(place), std::fabs(pool.offset_deviations()), pool.elements,
                    pool.offset > 0 ? "large" : "small"));
}

void Judge::State::judge_schemas() {
  for (const auto& [place, sentence] : op_judge.schemas().strangers()) {
    const auto at = std::ranges::find(ledger.places(), place) - ledger.places().begin();
    ledger.regrade_all(static_cast<int>(at), {.verdict = Verdict::introduced, .rule = sentence});
  }
  if (options.schema)
    ledger.note("judged under the schemas that were asked for, whatever the trace declares");
  if (accumulator() == Accumulator::tf32 && manifest.dtype == DType::f32)
    ledger.note(fmt::format("linear ops may round their operands to tf32, as {}",
                            options.accumulator ? "was asked for" : "the trace declares"));
  for (const std::string& note : op_judge.schemas().notes()) ledger.note(note);
}

void Judge::State::find_shapes(Result& result) const {
  std::vector<std::pair<Place, std::optional<ShapeRule>>> known;
  for (Finding& finding : result.findings) {
    if (!error_map.has(finding)) continue;
    const auto same = [&](const auto& entry) { return entry.first == finding.place; };
    auto at = std::ranges::find_if(known, same);
    if (at == known.end()) at = known.insert(at, {finding.place, error_map.rule_of(finding.place)});
    finding.shape = at->second;
  }
  if (result.first) result.first = result.findings.front();
}

std::map<std::string, double> Judge::State::limits() const {
  const double scale = options.limit_scale;
  return {{"T0", 0},
          {"T1", scale},
          {"T2_least", 1.10 * scale},
          {"T2_over_quantile", 1.05 * scale},
          {"T2_false_alarm", kFalseAlarm},
          {"T3_bf16", 0.02 * scale},
          {"T3_fp16", 0.10 * scale},
          {"T4_false_alarm", kFalseAlarm},
          {"T5_deviations", kGainDeviations * scale},
          {"T5_fp32_standard_errors", kGainStudent * scale},
          {"T6_notice", kGainDeviations},
          {"lambda", kLambda},
          {"propagated_over_floor", kOverFloor}};
}

Result Judge::State::finish(const std::vector<RequestInfo>& requests, bool complete) {
  const auto regrade = [&](const Finding& finding) {
    const auto at = std::ranges::find(ledger.places(), finding.place) - ledger.places().begin();
    ledger.regrade(static_cast<int>(at), finding.pass, finding.request, finding);
  };
  for (const Finding& finding : unrecorded)
    if (op_judge.has_seen(*finding.place.point)) regrade(finding);
  for (const Finding& finding : flow.wrong_tokens(requests)) regrade(finding);
  for (size_t i = 0; i < ledger.places().size(); ++i) judge_pool(i);
  judge_schemas();
  judge_choices();
  for (const auto& [place, nodes] : overflowing)
    ledger.note(
        fmt::format("{} overflows in {} nodes, as its exact result does: nonfinite as "
                    "expected, and no finding",
                    text_of(ledger.places()[place]), nodes));
  Result result = ledger.result();
  find_shapes(result);
  result.logits = logits.summary();
  for (const RequestInfo& info : requests)
    result.requests.push_back({.id = info.id,
                               .name = info.name,
                               .prompt = info.prompt,
                               .tokens = info.tokens,
                               .argmax = info.argmax,
                               .flips = logits.flips(info.id)});
  result.provenance = manifest.provenance;
  result.provenance["limits"] = options.limits.name();
  result.limits = limits();
  result.blind = facts.blind_to();
  if (!complete) result.notes.push_back("the trace is incomplete");
  tell(result, {complete, ledger.main_reason(), unexplained,
                complete ? flow.undecided(requests) : std::string()});
  if (options.learn && result.verdict == "clean")
    for (const auto& [op, reached] : op_judge.reached())
      options.learn->learn(op, manifest.dtype, reached);
  return result;
}

Judge::Judge(const Manifest& manifest, Oracle& oracle, ReferenceModel* exact,
             ReferenceModel* rounded, JudgeOptions options)
    : state_(std::make_unique<State>(manifest, oracle, exact, rounded, std::move(options))) {}
Judge::~Judge() = default;

std::vector<Flag> Judge::judge(const Pass& pass) { return state_->judge(pass); }

Result Judge::finish(const std::vector<RequestInfo>& requests, bool complete) {
  return state_->finish(requests, complete);
}

}  // namespace lockstep
