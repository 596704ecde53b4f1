// The passes of a judged run, one after another. A pass goes through the parts in a fixed order:
// what it was fed (coverage, token flow, draws, history), the two models, what it wrote to the
// caches, and then all places in graph order, so that the origin of an op's inputs is known before
// its result is graded. From the first node that had outcomes under several contracts on, passes
// wait: whether such a node is a finding is known when the run has ended and the contracts are
// decided (judge_end.cc).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/base/check.h"
#include "probes/layer_watch.h"
#include "probes/only.h"
#include "src/judge/cache_read.h"
#include "src/judge/index_choice.h"
#include "src/judge/judge_state.h"
#include "src/judge/top_logits.h"
#include "src/stats/moments.h"
#include "src/stats/mutant.h"

namespace lockstep {
namespace {

// Where each point rounds: as the trace declares or was asked for, and as its accumulator says.
std::map<std::string, RoundingContract> contracts_of(const Manifest& manifest,
                                                     const RunFacts& facts,
                                                     const JudgeOptions& options) {
  auto contracts = options.contracts.value_or(manifest.contracts);
  std::set<const Point*> asked;
  for (const PointRounding& rounding : options.rounding)
    for (const Point* p : rounding.points) {
      contracts[std::string(p->name)] = rounding.contract;
      asked.insert(p);
    }
  const std::string accumulator = options.accumulator.value_or(facts.accumulator);
  check(accumulator.empty() || accumulator == "fp32" || accumulator == "tf32",
        "'{}' is no accumulator of linear ops: use fp32 or tf32", accumulator);
  for (const Point& p : kPoints) {
    const bool linear = row_of(p.op).has_matrix;
    if (linear && !asked.contains(&p) && accumulator == "tf32" && manifest.dtype == DType::f32)
      contracts[std::string(p.name)] = RoundingContract::tf32;
  }
  return contracts;
}

// Computes, by a model, the tensors of a pass of which the pass has numbers, to be compared with
// it. Caches are compared with the rows that were written to them.
Pass pass_of(ReferenceModel& model, const PassView& judged, const JudgeOptions& options,
             std::string_view doing, const ReferenceCheck* check_of) {
  const Selection& selection = options.selection;
  Pass pass;
  Recorder recorder({}, /*digests=*/false, [&](Pass seen) { pass = std::move(seen); });
  Only compared(recorder, [&](const Point& point, int layer) {
    const bool logits = point == lockstep::point("logits");  // tokens are explained by them
    if (point.is_cache())  // which an attention that is checked reads
      return check_of != nullptr && check_of->needs_cache(layer) &&
             selection.has(lockstep::point("attn.out"), layer);
    const bool routes = point == lockstep::point("mlp.router");  // which are compared too
    if (!(logits || routes || selection.has(point, layer))) return false;
    const RecordedTensor* tensor = judged.tensor({&point, layer}, /*request=*/-1);
    return tensor != nullptr && !tensor->data.view().empty();
  });
  LayerWatch watched(compared, [&](int32_t, int64_t, int layer) {
    if (options.progress) options.progress(doing, layer);
  });
  Probe probe(&watched);
  model.run(judged.info(), probe);
  check(probe.failure().empty(), "{}", probe.failure());
  return pass;
}

// A node whose tensor is missing, should its point turn out to be recorded elsewhere.
Finding missing_of(const NodeRows& node, const NodeOutcome& outcome, const Place& place) {
  return {.node = {.place = place, .pass = outcome.pass, .request = node.request},
          .position = node.rows.front().position,
          .verdict = Verdict::structural,
          .rule = kMissingTensor};
}

// Whether slots of a page that no token was written to are known to hold NaN.
bool fills_slots(const Manifest& manifest) {
  const auto engine = manifest.provenance.find("engine");
  return engine != manifest.provenance.end() && engine->second == "lockstep";
}

// Where the NaN of an attention may come from that reads none: from slots past the context, which
// the engine of this project fills with NaN. Empty where no page of the request has such slots.
std::string past_context_text(const PassView& seen, int32_t request, int64_t page_size) {
  const int64_t keys = seen.length_of(request);
  if (page_size <= 0 || keys % page_size == 0) return "";
  const std::vector<RequestPages>& tables = seen.info().pages;
  const auto table = std::ranges::find(tables, request, &RequestPages::request);
  const size_t last = keys / page_size;
  if (table == tables.end() || last >= table->pages.size()) return "";
  return fmt::format(
      "; what it reads is finite, so it read slots past the context of request {}, which hold NaN "
      "({} keys: its last page, page {}, holds {} of {}), or made the NaN itself",
      request, keys, table->pages[last], keys % page_size, page_size);
}

bool makes_nan(const NodeOutcome& outcome) {
  return outcome.verdict == Verdict::nonfinite && !outcome.overflows && !outcome.passes_on &&
         std::isnan(outcome.finding.got);
}

// Row by row, the experts that the engine chose at a layer, where that is what its own logits say:
// both models follow it there, for which of two nearly equal experts is taken is no error. Empty
// where it is not known, or wrong. Where the logits were not recorded they follow it too: whether
// it is wrong is for mlp.experts to say, and no token is to be an error because of it.
TensorView experts_of(const PassView& seen, int layer) {
  const RecordedTensor* chosen = seen.tensor({&point("mlp.experts"), layer}, -1);
  const RecordedTensor* logits = seen.tensor({&point("mlp.router"), layer}, -1);
  if (!chosen || chosen->dtype != DType::i32 || chosen->data.view().empty()) return {};
  if (logits && logits->data.view().empty()) return {};
  NodeRows all;
  for (const PassRow& r : seen.info().rows) all.rows.push_back(r.row);
  if (chosen->rows != all.rows || (logits && logits->rows != all.rows)) return {};
  if (!logits) return chosen->data.view();
  const ChoiceOutcome outcome = judge_choice(all, false, logits->data, chosen->data);
  return outcome.node.verdict == Verdict::bitwise ? chosen->data.view() : TensorView{};
}

}  // namespace

Judge::State::State(const Manifest& manifest_, Oracle& oracle_, ReferenceModel* exact_,
                    ReferenceModel* rounded_, JudgeOptions options_)
    : manifest(manifest_),
      oracle(oracle_),
      exact(exact_),
      rounded(rounded_),
      options(std::move(options_)),
      facts(run_facts_of(manifest_)),
      op_judge(oracle_, manifest_.graph,
               {.dtype = manifest_.dtype,
                .page_size = facts.page_size,
                .limit_scale = options.limit_scale,
                .threads = options.threads,
                // Also the inputs of one op, kept before it ran.
                .partial = !manifest_.selection.empty() || facts.one_op,
                .full = manifest_.level == TraceLevel::full,
                .may_saturate = options.may_saturate,
                .recorded = options.recorded,
                .contracts = contracts_of(manifest_, facts, options),
                .limits = options.limits}),
      ledger(manifest_.graph),
      ancestry(manifest_.graph, ledger.places()),
      draws(manifest_.requests),
      logits(manifest_.dtype),
      routing(manifest_.dtype),
      reference_check(oracle_, manifest_.graph, manifest_.dtype),
      coverage(facts.page_size, facts.sliding_window),
      error_map(facts.page_size) {
  const Graph wanted = oracle.graph().restricted(
      [&](const Place& place) { return !place.point->optional || manifest.graph.has(place); });
  check(wanted == manifest.graph,
        "the trace is of a model of {}, the checkpoint has {}: give the --model that the trace was "
        "made with",
        text_of(manifest.graph), text_of(wanted));
  for (const PointRounding& rounding : options.rounding)
    check_can_round(rounding, manifest.graph,
                    [this](const Place& place) { return op_judge.possible(place); });
  check(
      (exact == nullptr) == (rounded == nullptr),
      "the models in fp64 and in the run's dtype are compared with each other: give both or none");
}

void Judge::State::look_for_strays(const Pass& pass) {
  for (const RecordedTensor& tensor : pass.tensors) {
    const Place place{tensor.point, tensor.layer};
    if (manifest.graph.has(place)) continue;
    ledger.stray({.node = {.place = place, .pass = pass.info.pass},
                  .verdict = Verdict::structural,
                  .rule = "the model has no such place"});
  }
}

// Both models follow the engine's choice of experts: another expert's numbers would be no error of
// rounding, and no bound would hold after it.
void Judge::State::run_models(const PassView& seen) {
  exact_pass = rounded_pass = {};
  if (!exact) return;
  if (flow.continues()) {
    for (ReferenceModel* model : {exact, rounded})
      model->follow([&](int layer) { return experts_of(seen, layer); });
    reference_check.begin_pass();
    exact_pass = pass_of(*exact, seen, options, "reference in fp64", &reference_check);
    rounded_pass = pass_of(*rounded, seen, options, "reference rounded", nullptr);
    reference_check.check(exact_pass);
    for (ReferenceModel* model : {exact, rounded}) model->follow({});
    routing.add(seen, exact_pass, rounded_pass);
    return;
  }
  exact = rounded = nullptr;
  ledger.note(
      fmt::format("the reference models stop at pass {}, whose positions do not continue "
                  "those before it: nothing later is found to be propagated",
                  seen.info().pass));
}

// Written rows first, then what is read of requests that began in another's cache: what nobody is
// known to have written is taken as given once.
void Judge::State::remember_cache(const PassView& seen) {
  for (size_t i = 0; i < ledger.places().size(); ++i) {
    const Place& place = ledger.places()[i];
    if (!place.point->is_cache()) continue;
    const RecordedTensor* k = seen.tensor(ancestry.inputs(i).at(0), -1);
    const RecordedTensor* v = seen.tensor(ancestry.inputs(i).at(1), -1);
    const bool fit = k && v && !k->data.view().empty() && !v->data.view().empty() &&
                     k->rows == v->rows && k->shape == v->shape && k->dtype == v->dtype &&
                     k->shape.rank() == 3 && k->shape[0] == std::ssize(k->rows);
    if (fit) history.write(place.layer, k->rows, k->data, v->data);
    for (const NodeRows& node : seen.nodes_of(place)) {
      const RecordedTensor* kv = seen.tensor(place, node.request);
      if (!kv || kv->shape.rank() != 4 || kv->shape[0] != std::ssize(kv->rows)) continue;
      const std::vector<uint64_t> hashes = hashes_of(*kv);
      if (hashes.size() == kv->rows.size()) history.adopt(place.layer, kv->rows, hashes, kv->data);
    }
  }
}

// Places outside of the selection, and hidden ones, have nodes without an outcome: origins pass
// through them.
void Judge::State::judge_place(size_t index, const JudgedPass& pass, Judged& judged) {
  const Place& place = ledger.places()[index];
  const std::vector<NodeRows>& nodes = pass.seen.nodes_of(place);
  op_judge.reach(place);
  const bool ignored = is_mutant(Mutant::first_layer_only) && place.layer > 0;
  if (ignored || !options.selection.has(*place.point, place.layer)) {
    for (const NodeRows& node : nodes) judged.pending.push_back({index, node.request, {}, {}});
    return;
  }
  if (op_judge.hidden().covers(place)) {
    ledger.hide(std::ssize(nodes));
    for (const NodeRows& node : nodes) judged.pending.push_back({index, node.request, {}, {}});
    return;
  }
  std::vector<NodeOutcomes> all = op_judge.judge(place, ancestry.inputs(index), pass);
  const std::vector<RoundingContract> candidates = op_judge.candidates(place);
  const std::vector<Place> region = op_judge.hidden().region_of(place);
  for (size_t n = 0; n < nodes.size(); ++n) {
    const NodeRows& node = nodes[n];
    for (NodeOutcome& outcome : all[n]) {
      outcome.place = static_cast<int>(index);
      outcome.pass = pass.seen.info().pass;
      outcome.request = node.request;
      outcome.finding.region = region;
      if (place.point->op == OpKind::gather) flow.check_order(node, outcome);
      if (place.point->op == OpKind::attention && fills_slots(manifest) && makes_nan(outcome))
        outcome.finding.rule += past_context_text(pass.seen, node.request, facts.page_size);
    }
    if (all[n].front().unrecorded) unrecorded.push_back(missing_of(node, all[n].front(), place));
    if (all[n].size() > 1) {
      undeclared = true;
      op_judge.contracts().add(place, candidates, all[n]);
    }
    const RecordedTensor* tensor = pass.seen.tensor(place, node.request);
    judged.pending.push_back(
        {index, node.request,
         tensor && tensor->shape.rank() > 0 ? Shape(tensor->shape.extents().subspan(1)) : Shape{},
         std::move(all[n])});
  }
}

// Where what the inputs of an op have decides what is wrong with its result.
void Judge::State::grade(NodeOutcome& outcome, Ancestry::Origin& origin) {
  // A value that is not finite came by an input. Which verdict that deserves depends on where the
  // input has it from: a finding, an overflow that was due, or, with neither, the node's own
  // tensors.
  if (outcome.passes_on && outcome.verdict == Verdict::nonfinite) {
    if (origin.finding >= 0) {
      outcome.verdict = Verdict::propagated;
      outcome.ancestor = origin.finding;
    } else if (origin.overflow >= 0 && outcome.blank) {
      // Anything may be wrong with what holds no number.
      outcome.verdict = Verdict::inconclusive;
      outcome.reason = fmt::format(
          "none of their elements is a number, because {} overflows as its exact result does",
          text_of(ledger.places()[origin.overflow]));
    } else if (origin.overflow >= 0) {
      outcome.verdict = outcome.besides;
    }
  }
  // An op that is right on wrong inputs is told from one on right inputs by the whole way: it is
  // off from the fp64 model by more than kOverFloor times what rounding makes of that model.
  const ErrorSums& sums = outcome.sums;
  const bool fine = outcome.verdict == Verdict::bitwise || outcome.verdict == Verdict::rounding;
  if (fine && origin.finding >= 0 && sums.compared > 0 &&
      !within(root_mean(sums.total, sums.compared),
              kOverFloor * root_mean(sums.floor, sums.compared))) {
    outcome.verdict = Verdict::propagated;
    outcome.ancestor = origin.finding;
  }
  if (outcome.overflows && origin.overflow < 0) origin.overflow = outcome.place;
}

// Two wrong places that one hidden op leads to are one error.
void Judge::State::lead_back(NodeOutcome& outcome, const std::vector<Place>& region) const {
  if (outcome.verdict != Verdict::introduced && outcome.verdict != Verdict::nonfinite) return;
  for (const Place& hidden : region) {
    const auto found = blamed.find({index_of(hidden), outcome.request});
    if (found == blamed.end()) continue;
    outcome.verdict = Verdict::propagated;
    outcome.ancestor = found->second;
    return;
  }
}

// A node's outcome is graded by the origin of its inputs, entered, and becomes the origin of those
// after it. A finding over a region of hidden ops blames them too.
bool Judge::State::settle(Pending& pending, const Judged& judged) {
  bool found = false;
  Ancestry::Origin origin = ancestry.of_inputs(pending.place, pending.request);
  if (!pending.outcomes.empty()) {
    const Place& place = ledger.places()[pending.place];
    const size_t chosen = pending.outcomes.size() > 1 ? op_judge.contracts().chosen(place) : 0;
    NodeOutcome outcome = std::move(pending.outcomes[chosen]);
    if (outcome.overflows) ++overflowing[pending.place];
    grade(outcome, origin);
    const std::vector<Place> region = outcome.finding.region;
    lead_back(outcome, region);
    error_map.add(judged.errors, place, pending.row_shape, outcome);
    const int finding = ledger.enter(std::move(outcome));
    found = finding >= 0;
    if (found) origin.finding = finding;
    for (const Place& hidden : region)
      if (found) blamed.try_emplace({index_of(hidden), pending.request}, finding);
  }
  ancestry.set(pending.place, pending.request, origin);
  return found;
}

std::vector<NodeId> Judge::State::settle(Judged& judged) {
  ancestry.begin_pass();
  blamed.clear();
  std::vector<NodeId> flags;
  for (Pending& pending : judged.pending)
    if (settle(pending, judged))
      flags.push_back({ledger.places()[pending.place], judged.pass, pending.request});
  const size_t index = index_of({&point("logits"), -1});
  for (const NodeRows& node : judged.with_logits)
    if (const int source = ancestry.of(index, node.request).finding; source >= 0)
      logits.lead_back(node.request, node.rows, text_of(ledger.place_of_finding(source)));
  return flags;
}

// Before it is known which contract counts: what is a finding under all that were tried. A writer
// must be told now whose tensors to keep; nodes that fit one of the contracts are not among them.
std::vector<NodeId> flagged_by_all(const Judged& judged, const std::vector<Place>& places) {
  std::vector<NodeId> flags;
  for (const Pending& node : judged.pending)
    if (!node.outcomes.empty() && std::ranges::all_of(node.outcomes, [](const NodeOutcome& o) {
          return o.is_finding() && !o.passes_on;
        }))
      flags.push_back({places[node.place], judged.pass, node.request});
  return flags;
}

std::vector<NodeId> Judge::State::judge(const Pass& pass) {
  const PassView seen(pass, options.selection, &manifest.graph);
  coverage.add(pass);
  flow.begin(pass);
  draws.add(pass, [this](const Row& row) { return flow.tokens_up_to(row); });
  history.begin(pass.info);
  look_for_strays(pass);
  for (Finding& finding : top_logits_findings(pass))
    if (options.selection.has(*finding.node.place.point, -1) &&
        options.selection.has(Row{finding.node.request, finding.position}))
      wrong_top_logits.push_back(std::move(finding));
  run_models(seen);
  remember_cache(seen);
  op_judge.begin_pass(seen);
  const JudgedPass parts{seen, history, exact ? &exact_pass : nullptr,
                         rounded ? &rounded_pass : nullptr};
  Judged judged{.pass = pass.info.pass,
                .errors = error_map.begin(seen),
                .with_logits = seen.nodes_of({&point("logits"), -1})};
  for (size_t i = 0; i < ledger.places().size(); ++i) {
    if (options.progress) options.progress("judging", ledger.places()[i].layer);
    judge_place(i, parts, judged);
  }
  const auto logits_of = [](const Pass& of) { return of.find(point("logits"), -1); };
  logits.add(pass.info.pass, logits_of(pass), logits_of(exact_pass), logits_of(rounded_pass));
  // Once a point has been tried under several contracts, passes wait until one is chosen.
  if (!undeclared) return settle(judged);
  std::vector<NodeId> flags = flagged_by_all(judged, ledger.places());
  waiting.push_back(std::move(judged));
  return flags;
}

Judge::Judge(const Manifest& manifest, Oracle& oracle, ReferenceModel* exact,
             ReferenceModel* rounded, JudgeOptions options)
    : state_(std::make_unique<State>(manifest, oracle, exact, rounded, std::move(options))) {}
Judge::~Judge() = default;

std::vector<NodeId> Judge::judge(const Pass& pass) {
  return state_->judge(narrowed(pass, state_->manifest.dtype));
}

void Judge::end(int32_t request) {
  state_->history.end(request);
  for (ReferenceModel* model : {state_->exact, state_->rounded})
    if (model != nullptr) model->end(request);
}

RoundingContract Judge::contract_at(const Place& place) const {
  const OpJudge& ops = state_->op_judge;
  const std::vector<RoundingContract> candidates = ops.candidates(place);
  return candidates.size() > 1 ? ops.contracts().of(*place.point) : candidates.front();
}

std::vector<Place> Judge::region_of(const Place& place) const {
  return state_->op_judge.hidden().region_of(place);
}

const KvHistory& Judge::history() const { return state_->history; }

Result Judge::finish(const std::vector<RequestInfo>& requests, bool complete) {
  return state_->finish(requests, complete);
}

}  // namespace lockstep
