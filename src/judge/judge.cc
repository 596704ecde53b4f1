// Places of a pass are judged in graph order (judge_parts.cc), so that the origin of an op's inputs
// is known before its result is graded. From the first node that had outcomes under several
// contracts on, passes wait: whether such a node is a finding is known when the run has ended and
// the contracts are decided (judge_end.cc).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "src/judge/free_slots.h"
#include "src/judge/judge_state.h"
#include "src/judge/own_engine.h"
#include "src/judge/shares.h"
#include "src/stats/moments.h"
#include "src/stats/mutant.h"

namespace lockstep {
namespace {

// An op whose error would show by so many budgets in a place that is right is not where it is made.
constexpr double kManyTimes = 10;

bool several_threads(const JudgeOptions& options) {
  return (options.threads > 0 ? options.threads : machine_threads()) > 1;
}

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

// Nobody reads the shares of an attention but who judges them, so that a trace in which no pass has
// them is as that of an engine that shows none.
Manifest without_unseen_shares(Manifest manifest, const JudgeOptions& options) {
  if (options.recorded)
    manifest.graph = manifest.graph.restricted([&](const Place& place) {
      return !place.point->is_of_shares() || options.recorded(place);
    });
  return manifest;
}

// The recorded inputs of an op that is judged by other ones: the shares that an attention is merged
// of. `read` is left those that it is judged by.
std::vector<Place> take_shares(std::vector<Place>& read) {
  const auto first = std::stable_partition(
      read.begin(), read.end(), [](const Place& input) { return !input.point->is_of_shares(); });
  const std::vector<Place> shares(first, read.end());
  read.erase(first, read.end());
  return shares;
}

// A node whose tensor is missing, should its point turn out to be recorded elsewhere.
Finding missing_of(const NodeRows& node, const NodeOutcome& outcome, const Place& place) {
  return {.node = {.place = place, .pass = outcome.pass, .request = node.request},
          .position = node.rows.front().position,
          .verdict = Verdict::structural,
          .rule = kMissingTensor};
}

// Where the NaN of an attention may come from: from slots past the context, which the engine of
// this project fills with NaN, or, where nobody saw what was read, from any slot of the cache.
// Empty where no page of the request has such slots.
std::string past_context_text(const PassView& seen, int32_t request, int64_t page_size,
                              bool sees_cache) {
  if (!sees_cache)
    return fmt::format(
        "; what it read of the cache was not recorded: NaN is in slots that nobody wrote, of the "
        "context of request {} or past it, or else was made on the way",
        request);
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

// Where K or V is read back from the cache that an op was to write, a row that it did not has what
// free slots are filled with.
void look_for_unwritten(const TensorView& rows, const NodeRows& node, NodeOutcome& outcome) {
  if (rows.empty()) return;
  std::vector<int64_t> positions;
  for (int64_t r = 0; r < rows.rows(); ++r)
    if (holds_fill(rows, r, std::numeric_limits<float>::quiet_NaN()))
      positions.push_back(node.rows[r].position);
  if (positions.empty()) return;
  outcome.verdict = Verdict::structural;
  outcome.position = static_cast<int32_t>(positions.front());
  outcome.finding.position = outcome.position;
  outcome.finding.rule = fmt::format(
      "nothing was written to the cache for {} of {} rows, position {} the first: each of its {} "
      "numbers is the NaN that free slots hold",
      positions.size(), rows.rows(), positions.front(), rows.row_size());
}

std::string names_of(const std::vector<Place>& places) {
  std::vector<std::string_view> names;
  for (const Place& place : places) names.push_back(place.point->name);
  return names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, ", "));
}

// Where two graphs part that are alike in what text_of() says of them.
std::string where_apart(const Graph& found, const Graph& wanted) {
  const Graph read = without_merges(found), of_model = without_merges(wanted);
  for (const Place& place : wanted.places()) {
    if (!found.has(place)) return fmt::format("it has no {}", text_of(place));
    if (read.inputs_of(place) != of_model.inputs_of(place))
      return fmt::format("its {} reads {}, where that of the model reads {}", text_of(place),
                         names_of(found.inputs_of(place)), names_of(wanted.inputs_of(place)));
  }
  for (const Place& place : found.places())
    if (!wanted.has(place)) return fmt::format("it has {}, which no model has", text_of(place));
  return "its ops stand in another order";
}

void check_graph(const Graph& found, const Graph& wanted) {
  if (without_merges(found) == without_merges(wanted)) return;
  const std::string of_trace = text_of(found), of_model = text_of(wanted);
  check(of_trace == of_model,
        "the trace is of a model of {}, the checkpoint has {}: give the --model that the trace was "
        "made with",
        of_trace, of_model);
  fail("the graph of the trace is not that of the checkpoint's model: {}: have it written anew",
       where_apart(found, wanted));
}

}  // namespace

bool is_own_engine(const Manifest& manifest) {
  const auto engine = manifest.provenance.find("engine");
  return engine != manifest.provenance.end() && engine->second == "lockstep";
}

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
                .rows = options.rows,
                .limit_scale = options.limit_scale,
                .threads = options.threads,
                // Also the inputs of one op, kept before it ran.
                .partial = !manifest_.selection.empty() || facts.one_op,
                .full = manifest_.level == TraceLevel::full,
                // The ops of its own engine, and those in their place, are to store Inf.
                .may_saturate = options.may_saturate && !is_own_engine(manifest_),
                .ties = is_own_engine(manifest_) ? Ties::first : Ties::any,
                .recorded = options.recorded,
                .contracts = contracts_of(manifest_, facts, options),
                .limits = options.limits}),
      ledger(manifest_.graph),
      ancestry(manifest_.graph, ledger.places()),
      history(/*keep_bytes=*/true, KvHistory::kMostGone, /*sees_all=*/facts.sliding_window == 0),
      draws(manifest_.requests),
      logits(manifest_.dtype),
      routing(manifest_.dtype),
      reference_check(oracle_, manifest_.graph, manifest_.dtype),
      coverage(facts.page_size, facts.sliding_window),
      error_map(facts.page_size, options.rows),
      models_go_ahead((oracle_.on_device() || several_threads(options)) &&
                      oracle_.chosen_experts() == 0) {
  const Graph wanted =
      with_shares_of(manifest.graph, oracle.graph().restricted([&](const Place& place) {
        return !place.point->optional || manifest.graph.has(place);
      }));
  check_graph(manifest.graph, wanted);
  for (const PointRounding& rounding : options.rounding)
    check_can_round(rounding, manifest.graph,
                    [this](const Place& place) { return op_judge.possible(place); });
  check(
      (exact == nullptr) == (rounded == nullptr),
      "the models in fp64 and in the run's dtype are compared with each other: give both or none");
  find_parts();
}

// A token that does not follow from those before it is wrong, whether or not anybody recorded the
// op that read it. Such a node counts as a judged one, and the others of the place as hidden.
void Judge::State::hide_place(size_t index, const JudgedPass& pass, Judged& judged) {
  const Place& place = ledger.places()[index];
  for (const NodeRows& node : pass.seen.nodes_of(place)) {
    NodeOutcome outcome;
    if (place.point->op == OpKind::gather) flow.check_order(node, outcome);
    judged.pending.push_back({index, node.request, {}, {}});
    if (outcome.verdict == Verdict::bitwise) {
      ledger.hide(1);
      continue;
    }
    outcome.place = static_cast<int>(index);
    outcome.pass = pass.seen.info().pass;
    outcome.request = node.request;
    judged.pending.back().outcomes = {std::move(outcome)};
  }
}

// Places outside of the selection, and hidden ones, have nodes without an outcome: origins pass
// through them.
void Judge::State::judge_place(size_t index, const JudgedPass& pass, Judged& judged) {
  const Place& place = ledger.places()[index];
  const std::vector<NodeRows>& nodes = pass.seen.nodes_of(place);
  op_judge.reach(place);
  const bool ignored = is_mutant(Mutant::first_layer_only) && place.layer > 0;
  const bool shows_none = place.point->is_of_shares() && work->has_no_shares;
  if (ignored || shows_none || !options.selection.has(*place.point, place.layer)) {
    for (const NodeRows& node : nodes) judged.pending.push_back({index, node.request, {}, {}});
    return;
  }
  if (op_judge.hidden().covers(place)) {
    hide_place(index, pass, judged);
    return;
  }
  std::vector<Place> read = ancestry.inputs(index);
  std::vector<Place> shares = take_shares(read);
  if (work->has_no_shares) shares.clear();
  std::vector<NodeOutcomes> all = op_judge.judge(place, read, pass);
  // An attention is as wrong as its shares where nobody judges these.
  const auto is_judged = [&](const Place& share) {
    return options.selection.has(*share.point, share.layer);
  };
  if (!shares.empty() && std::ranges::all_of(shares, is_judged)) {
    op_judge.judge_merge(place, shares, pass, all);
    of_shares.insert(static_cast<int>(index));
  }
  const std::vector<RoundingContract> candidates = op_judge.candidates(place);
  const std::vector<Place> region = op_judge.hidden().region_of(place);
  const std::vector<Place> cached = manifest.graph.inputs_of({&point("attn.kv"), place.layer});
  const bool sees_cache =
      std::ranges::none_of(region, [&](const Place& hidden) { return hidden.point->is_cache(); });
  const bool is_cached = !region.empty() && std::ranges::count(cached, place) > 0;
  for (size_t n = 0; n < nodes.size(); ++n) {
    const NodeRows& node = nodes[n];
    for (NodeOutcome& outcome : all[n]) {
      outcome.place = static_cast<int>(index);
      outcome.pass = pass.seen.info().pass;
      outcome.request = node.request;
      outcome.finding.region.insert(outcome.finding.region.begin(), region.begin(), region.end());
      if (place.point->op == OpKind::gather) flow.check_order(node, outcome);
      if (row_of(place.point->op).attends && is_own_engine(manifest) && makes_nan(outcome))
        outcome.finding.rule +=
            past_context_text(pass.seen, node.request, facts.page_size, sees_cache);
      if (is_cached && is_own_engine(manifest) && makes_nan(outcome))
        look_for_unwritten(SelectedRows(pass.seen.tensor(place, node.request), node.rows).view(),
                           node, outcome);
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
  // input has it from: a finding, an overflow that was due, an op that nobody judged, whose
  // overflow may be due as well, or, with none of them, the node's own tensors.
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
    } else if (origin.unjudged) {
      outcome.verdict = Verdict::inconclusive;
      outcome.reason = "what they read holds NaN or Inf, and nobody judged who made it";
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

// Two wrong places that one hidden op leads to may be one error, or two: nothing tells which. They
// are two where another reader of that op is right, and would have shown so large an error of it
// many times over. A share that was found wrong when its contract was known is what differs from
// the attention that was made of it.
void Judge::State::lead_back(NodeOutcome& outcome, const std::vector<Place>& region) {
  if (outcome.verdict != Verdict::introduced && outcome.verdict != Verdict::nonfinite) return;
  for (const Place& hidden : region) {
    const auto share = wrong_shares.find({index_of(hidden), outcome.request});
    if (share != wrong_shares.end() && share->second >= 0) {
      outcome.verdict = Verdict::propagated;
      outcome.ancestor = share->second;
      excused.insert(outcome.place);
      return;
    }
    const auto found = of_hidden.find({index_of(hidden), outcome.request});
    if (found == of_hidden.end() || found->second.finding < 0 ||
        found->second.error > kManyTimes * found->second.shows_from)
      continue;
    outcome.verdict = Verdict::confounded;
    outcome.ancestor = found->second.finding;
    led_back.insert(outcome.place);
    excused.insert(outcome.place);
    return;
  }
}

// Whether later ops may read rows of the place that were not judged though the node was: all but
// the rows that were drawn, and of a cache those that are not selected, or were there before.
bool Judge::State::leaves_rows_unjudged(const Place& place, int32_t request) const {
  if (!options.rows.all()) return true;
  return place.point->is_cache() &&
         (!options.selection.has_every_row() || history.adopted().contains(request));
}

// A node's outcome is graded by the origin of its inputs, entered, and becomes the origin of those
// after it. A finding over a region of hidden ops blames them too, and a right one clears them.
bool Judge::State::settle(Pending& pending, const Judged& judged) {
  bool found = false, unjudged = pending.outcomes.empty() && !options.inputs_are_given;
  Ancestry::Origin origin = ancestry.of_inputs(pending.place, pending.request);
  if (!pending.outcomes.empty()) {
    const Place& place = ledger.places()[pending.place];
    const size_t chosen = pending.outcomes.size() > 1 ? op_judge.contracts().chosen(place) : 0;
    NodeOutcome outcome = std::move(pending.outcomes[chosen]);
    if (outcome.overflows) ++overflowing[pending.place];
    const bool right = outcome.verdict == Verdict::bitwise || outcome.verdict == Verdict::rounding;
    // Its budget by the size of its row, of an element that is known.
    const double from = outcome.t1 > 0 ? outcome.of_row / outcome.t1 : 0;
    grade(outcome, origin);
    unjudged = outcome.verdict == Verdict::inconclusive ||
               leaves_rows_unjudged(place, pending.request) ||
               (place.point->is_cache() && origin.unjudged);
    const std::vector<Place> region = outcome.finding.region;
    const double error = outcome.finding.of_row;
    lead_back(outcome, region);
    error_map.add(judged.errors, place, pending.row_shape, outcome);
    const int finding = ledger.enter(std::move(outcome));
    found = finding >= 0;
    if (place.point->is_of_shares()) wrong_shares[{pending.place, pending.request}] = finding;
    if (found) origin.finding = finding, wrong_by_itself.insert(index_of(place));
    for (const Place& hidden : region) {
      OfHidden& of = of_hidden[{index_of(hidden), pending.request}];
      if (found && of.finding < 0) of.finding = finding, of.error = error;
      if (right && from > 0) of.shows_from = std::min(of.shows_from, from);
    }
  }
  origin.unjudged = unjudged;
  ancestry.set(pending.place, pending.request, origin);
  return found;
}

Judge::Judge(const Manifest& manifest, Oracle& oracle, ReferenceModel* exact,
             ReferenceModel* rounded, JudgeOptions options)
    : state_(std::make_unique<State>(without_unseen_shares(manifest, options), oracle, exact,
                                     rounded, std::move(options))) {
  // Shares may be left out on purpose, and a graph that was made up promises none.
  if (!manifest.selection.empty() || !manifest.graph_known) return;
  const Graph& judged = state_->manifest.graph;
  for (const Place& place : manifest.graph.places())
    if (!judged.has(place)) state_->unseen_shares.insert(place.point->order());
}
// Questions about the next part may be under way where somebody threw between two.
Judge::~Judge() { state_->let_all_end(); }

std::vector<NodeId> Judge::judge(const Pass& pass) {
  const State::WaitsWhereItThrows waits{*state_};
  begin_pass(pass);
  state_->look_for_shares();
  state_->remember_caches(state_->parts.size());  // all that was written, before what was read
  std::vector<NodeId> flags;
  while (state_->next_part < state_->parts.size()) {
    const std::vector<NodeId> some = state_->judge_part();
    flags.insert(flags.end(), some.begin(), some.end());
  }
  end_pass(pass);
  return flags;
}

void Judge::begin_pass(const Pass& pass) { state_->begin_pass(pass); }

bool Judge::has_next_part(const Pass& so_far) const { return state_->has_next_part(so_far); }

std::vector<NodeId> Judge::judge_part(const Pass& so_far) {
  state_->see(so_far);
  return state_->judge_part();
}

void Judge::end_pass(const Pass& pass) { state_->end_pass(pass); }

int Judge::parts_left() const { return static_cast<int>(state_->parts.size() - state_->next_part); }

bool Judge::has_judged(const Place& place) const {
  return state_->part_of(place) < state_->next_part;
}

bool Judge::has_just_judged(const Place& place) const {
  return state_->part_of(place) + 1 == state_->next_part;
}

bool Judge::reads_later(const Place& place) const {
  const int node = state_->manifest.graph.index_of(place);
  return node >= 0 && state_->last_part[node] >= state_->next_part;
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

bool Judge::may_be_of(const Place& place, RoundingContract contract) const {
  return contract == contract_at(place) ||
         std::ranges::count(state_->op_judge.possible(place), contract) > 0;
}

std::optional<RoundingContract> Judge::right_as(const Place& place) const {
  const OtherContracts tried = state_->op_judge.other_contracts(place);
  return tried.says_nothing() ? std::nullopt : tried.that_fits();
}

std::vector<Place> Judge::region_of(const Place& place) const {
  return state_->op_judge.hidden().region_of(place);
}

const KvHistory& Judge::history() const { return state_->history; }

Result Judge::finish(const std::vector<RequestInfo>& requests, bool complete) {
  return state_->finish(requests, complete);
}

}  // namespace lockstep
