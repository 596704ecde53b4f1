// Contracts and groups of an OpJudge; op_questions.cc asks, op_blocks.cc measures,
// op_judge_exact.cc compares what must be exact. The order of the questions saves time: a contract
// that failed in most layers is asked last, and only of nodes that fit no other; a finding under a
// declared contract is judged again under the others, a few nodes a place, so that the report can
// say which rounding would make it right.
#include "src/judge/op_judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/judge/budget.h"
#include "src/judge/cache_read.h"
#include "src/judge/op_judge_parts.h"
#include "src/judge/ops/judged_op.h"
#include "src/judge/row_sample.h"

namespace lockstep {
namespace {

constexpr int64_t kMany = 4096;  // elements whose share and gain are worth learning
// Findings of a place that are judged again under other contracts: they agree or they do not.
constexpr int64_t kMostTried = 16;
// Nodes of a place that are measured again for where their errors lie, when no element shows it.
constexpr int64_t kMostShown = 16;

// Rounding in another way turns a share of all elements, so that of one alone among many another
// contract's budget, which is wider, says nothing.
constexpr int64_t kManyBeside = 64;

}  // namespace

OpJudge::OpJudge(Oracle& oracle, const Graph& graph, OpJudge::Options options)
    : oracle_(oracle),
      graph_(graph),
      for_places_(oracle_.asked_by_several() ? most_expected() + 1 : 1),
      options_(std::move(options)),
      contracts_(options_.contracts),
      hidden_(oracle_, without_merges(graph),
              {.dtype = options_.dtype,
               .recorded = options_.recorded,
               .stored_as = [this](const Place& place) { return dtype_at(place); },
               .contracts = [this](const Place& place) { return candidates(place); }}),
      judged_rows_{.asked = options_.rows} {}

const PlacePool* OpJudge::pooled(const Place& place, RoundingContract contract) const {
  if (wrong_by_shares_.contains(key_of(place))) return nullptr;
  pools_.wait();
  const auto pool = pools_.all().find({key_of(place), contract});
  return pool == pools_.all().end() ? nullptr : &pool->second;
}

ScaleSums OpJudge::scales(const Place& place, RoundingContract contract) const {
  const auto found = scales_.find({key_of(place), contract});
  return found == scales_.end() ? ScaleSums{} : found->second.sums();
}

std::vector<Statistic> OpJudge::pooled_statistics(const Place& place,
                                                  RoundingContract contract) const {
  const PlacePool* pool = pooled(place, contract);
  std::vector<Statistic> statistics;
  if (pool) statistics = pool->statistics(dtype_at(place));
  if (const ScaleSums sums = scales(place, contract); sums.rows > 0)
    statistics.push_back(sums.statistic(kPooledFalseAlarm));
  drop_missing(statistics);
  if (contract == RoundingContract::fused)
    tighten(statistics, options_.limits.of(place.point->op, dtype_at(place)));
  return statistics;
}

void OpJudge::decide_contracts(const std::vector<Place>& places) {
  for (const Place& place : places) {
    const std::vector<RoundingContract> contracts = candidates(place);
    if (contracts.size() < 2) continue;
    for (size_t c = 0; c < contracts.size(); ++c)
      for (const Statistic& statistic : pooled_statistics(place, contracts[c]))
        if (!statistic.passes(options_.limit_scale)) contracts_.add_misfit(place, c);
  }
  contracts_.decide();
}

std::optional<RoundingContract> OtherContracts::that_fits() const {
  const auto found = std::ranges::find(others, tried, &Other::fits);
  if (tried == 0 || found == others.end()) return {};
  return found->contract;
}

OtherContracts OpJudge::other_contracts(const Place& place) const {
  const auto found = others_.find(key_of(place));
  return found == others_.end() ? OtherContracts{} : found->second;
}

std::map<OpKind, Reached> OpJudge::reached() const {
  std::map<OpKind, Reached> reached = reached_;
  pools_.wait();
  for (const auto& [key, pool] : pools_.all()) {
    const Point& p = kPoints[key.first.first];
    const Moments& m = pool.sum();
    // Shares and gains of few elements are chance.
    if (key.second != RoundingContract::fused || !reached.contains(p.op) || m.elements < kMany ||
        wrong_by_shares_.contains(key.first))
      continue;
    const double gain = m.power > 0 ? std::fabs(m.cross) / m.power : 0;
    reached[p.op].add({.share = m.share(), .gain = gain});
  }
  return reached;
}

void OpJudge::begin_pass(const PassView& pass) {
  misshapen_.clear();
  wrong_angles_.clear();
  doubts_ = {};
  see(pass, 0);
  hidden_.begin_pass(pass);
}

void OpJudge::see(const PassView& pass, size_t from) {
  for (const Point& p : kPoints)
    if (pass.shows(p)) seen_.insert(p.order());
  // A tensor that may be fp32 in a 16-bit run is held to the spacing of fp32 from that pass on, and
  // rotary tables of 16 bits to theirs in that pass.
  for (size_t i = from; i < graph_.places().size(); ++i) {
    const Place& place = graph_.places()[i];
    const bool table = is_table(*place.point);
    if (!table && !may_be_wider(*place.point)) continue;
    const RecordedTensor* tensor = pass.tensor(place, -1);
    if (tensor && (table || tensor->dtype == DType::f32)) stored_[key_of(place)] = tensor->dtype;
  }
}

// A stream is of one dtype: a sum that was not recorded would be of that which others were.
DType OpJudge::dtype_at(const Place& place) const {
  if (const auto found = stored_.find(key_of(place)); found != stored_.end()) return found->second;
  const auto is_wide_sum = [](const auto& stored) {
    return kPoints[stored.first.first].op == OpKind::add && stored.second == DType::f32;
  };
  if (place.point->op == OpKind::add && hidden_.covers(place) &&
      std::ranges::any_of(stored_, is_wide_sum))
    return DType::f32;
  return place.point->dtype_in(options_.dtype);
}

ContractTraits OpJudge::traits_of(const Place& place) const {
  const bool linear = place.point->op == OpKind::linear;
  return {.dtype = dtype_inside(place, dtype_at(place), options_.dtype),
          .has_bias = linear && oracle_.has_bias(place)};
}

std::vector<RoundingContract> OpJudge::candidates(const Place& place) const {
  if (place.point->is_cache() || row_of(place.point->op).makes_indices)
    return {RoundingContract::fused};
  return contracts_.candidates(place, traits_of(place));
}

bool OpJudge::reads(const Place& input) const {
  return !input.point->is_cache() && !(input.point->op == OpKind::angles && hidden_.covers(input));
}

std::string OpJudge::trouble_with(const Place& input, const JudgedPass& pass,
                                  const NodeRows& node) const {
  if (const HiddenTensor* hidden = hidden_.find(input)) return hidden->trouble;
  const RecordedTensor* tensor = pass.seen.tensor(input, node.request);
  const bool fits = !misshapen_.contains(key_of(input)) && tensor &&
                    tensor->dtype == dtype_at(input) &&
                    !SelectedRows(tensor, node.rows).view().empty();
  return fits ? "" : "an input of the op was not captured, or not as the model has it";
}

const RecordedTensor* OpJudge::tensor_of(const Place& input, const JudgedPass& pass,
                                         int32_t request) const {
  const HiddenTensor* hidden = hidden_.find(input);
  return hidden ? &hidden->value : pass.seen.tensor(input, request);
}

bool OpJudge::rejected(const Place& place, const std::vector<Place>& inputs, const JudgedPass& pass,
                       const NodeRows& node, DType dtype, NodeOutcome& outcome) const {
  const Trouble trouble = pass.seen.trouble(place, dtype, node);
  // The order matters: a tensor that nobody meant to keep is inconclusive, one of a point that no
  // pass has shown yet waits for the end, and only then is it missing.
  if (trouble.absent && options_.partial) {
    outcome = inconclusive("the trace was taken of a selection that leaves them out");
  } else if (trouble.absent && !has_seen(*place.point)) {
    outcome = inconclusive(fmt::format("the trace has no tensor of {}", place.point->name));
    outcome.unrecorded = true;
  } else if (!trouble.text.empty()) {
    outcome = structural(trouble.text, node.rows.front().position);
  } else if (!place.point->is_cache() &&
             pass.seen.tensor(place, node.request)->data.view().empty()) {
    outcome =
        inconclusive(options_.full ? "their numbers are missing from the trace, which is damaged"
                                   : "their tensors were kept as digests only");
  } else {
    for (const Place& input : inputs) {
      if (!reads(input) || place.point->is_cache()) continue;
      if (std::string why = trouble_with(input, pass, node); !why.empty())
        outcome = inconclusive(std::move(why));
    }
  }
  return outcome.verdict != Verdict::bitwise;
}

bool OpJudge::join(const Place& place, const std::vector<Place>& inputs, const JudgedPass& pass,
                   const NodeRows& node, Group& group, NodeOutcomes& outcomes) {
  group.tensor = pass.seen.tensor(place, node.request);
  const auto blurs = [&](const Place& input) {
    const HiddenTensor* hidden = hidden_.find(input);
    return hidden && !hidden->deviation.data.view().empty();
  };
  group.blurred_inputs = std::ranges::any_of(inputs, blurs);
  if (reads_sum(place, inputs))
    for (const Place& addend : graph_.inputs_of(inputs[0]))
      group.knows_sum = group.knows_sum && knows(addend, pass, node);
  std::string trouble;
  if (row_of(place.point->op).attends) trouble = find_cache(inputs.at(1), pass, node, group);
  if (place.point->is_of_shares() && options_.page_size <= 0)
    trouble = "which pages a share holds is not known, as the trace does not say its page_size";
  if (!trouble.empty()) {
    outcomes = {inconclusive(trouble)};
    return false;
  }
  add_rows(pass, node, group, &outcomes);
  return true;
}

void OpJudge::add_rows(const JudgedPass& pass, const NodeRows& node, Group& group,
                       NodeOutcomes* outcomes) {
  group.owner.insert(group.owner.end(), node.rows.size(), group.members.size());
  group.rows.insert(group.rows.end(), node.rows.begin(), node.rows.end());
  group.tokens.insert(group.tokens.end(), node.tokens.begin(), node.tokens.end());
  group.lengths.insert(group.lengths.end(), node.rows.size(), pass.seen.length_of(node.request));
  group.members.emplace_back(&node, outcomes);
}

std::vector<NodeOutcomes> OpJudge::judge(const Place& place, const std::vector<Place>& inputs,
                                         const JudgedPass& pass) {
  const std::vector<NodeRows>& nodes = pass.seen.nodes_of(place);
  std::vector<NodeOutcomes> outcomes(nodes.size());
  const OpKind op = place.point->op;
  std::vector<NodeRows> drawn(options_.rows.all() ? 0 : nodes.size());
  Group group, by_exact_angles{.exact_angles = true};
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeRows& node = nodes[i];
    Group& of_node =
        op == OpKind::rope && wrong_angles_.contains(node.request) ? by_exact_angles : group;
    NodeOutcome single;
    if (rejected(place, inputs, pass, node, dtype_at(place), single)) {
      outcomes[i] = {std::move(single)};
    } else if (op == OpKind::cache) {
      outcomes[i] = {judge_cache(place, inputs, pass, node)};
    } else if (row_of(op).makes_indices) {
      outcomes[i] = {judge_indices(place, inputs, pass, node)};
    } else {
      if (!drawn.empty()) drawn[i] = drawn_of(options_.rows, place, pass.seen.info().pass, node);
      const NodeRows& judged = drawn.empty() ? node : drawn[i];
      if (!join(place, inputs, pass, judged, of_node, outcomes[i])) continue;
      judged_rows_.add(std::ssize(judged.rows), std::ssize(node.rows));
      if (!row_of(op).attends) continue;
      judge_numbers(place, inputs, pass, group);  // of one request at a time
      group = {};
    }
  }
  if (!by_exact_angles.members.empty())
    judge_by_exact_angles(place, inputs, pass, by_exact_angles, group);
  if (!group.members.empty()) judge_numbers(place, inputs, pass, group);
  for (size_t i = 0; i < nodes.size() && op == OpKind::angles; ++i)
    if (std::ranges::any_of(outcomes[i], &NodeOutcome::is_finding))
      wrong_angles_.insert(nodes[i].request);
  for (size_t i = 0; i < nodes.size() && place.point->is_of_shares(); ++i)
    doubts_.add(place, nodes[i].request, outcomes[i], candidates(place).front());
  return outcomes;
}

// Engines copy the rows of their rotary tables for whoever looks, and turn by the tables in their
// own memory. So tables that were found wrong may be wrong where they are shown alone: a result
// that is right by the exact angles is right. One that is not is held to what was shown, as always.
void OpJudge::judge_by_exact_angles(const Place& place, const std::vector<Place>& inputs,
                                    const JudgedPass& pass, Group& own, Group& group) {
  judge_numbers(place, inputs, pass, own);
  for (const Group::Member& member : own.members) {
    if (std::ranges::any_of(*member.outcomes, may_round_so)) continue;
    member.outcomes->clear();
    join(place, inputs, pass, *member.node, group, *member.outcomes);
  }
}

Meter OpJudge::meter_of(const Place& place, const Group& group, const NodeRows& node,
                        PlacePool* pool, ProfiledRows profiled) const {
  return {
      {.dtype = dtype_at(place),
       .node_class = group.blurred ? NodeClass::elementwise : place.point->node_class,
       .row_shape = without_rows(group.tensor->shape),
       .page_size = options_.page_size,
       .truncates = judged_op(place.point->op).truncates,
       .may_lose_weights = judged_op(place.point->op).may_lose_weights,
       // The logarithm of nothing is too small for no dtype.
       .may_saturate = options_.may_saturate && place.point->op != OpKind::log_sum_exp,
       .rows_alike = group.blurred && (hidden_.rows_alike(place) || repeats_tokens(group.tokens)),
       .profiled = profiled},
      std::ssize(node.rows),
      pool};
}

void OpJudge::judge_numbers(const Place& place, const std::vector<Place>& inputs,
                            const JudgedPass& pass, Group& group) {
  const std::vector<RoundingContract> contracts = candidates(place);
  const RoundingContract first = contracts.front();
  // Libraries pick such kernels by the shape of a call, so a node may round as either of the two;
  // of a node that fits the stricter one that outcome is kept.
  if (contracts.size() == 1 && stricter_of(first) != first) {
    judge_under(stricter_of(first), place, inputs, pass, group);
    judge_under(first, place, inputs, pass, group);
    for (Group::Member& member : group.members)
      if (NodeOutcomes& both = *member.outcomes; both.size() == 2)
        both.erase(both[0].is_finding() ? both.begin() : both.begin() + 1);
  } else {
    judge_under_each(contracts, place, inputs, pass, group);
  }
  // The member's sums have the comparison with the two models, which was made once, and each
  // outcome what its own contract introduced.
  for (Group::Member& member : group.members)
    for (NodeOutcome& outcome : *member.outcomes) {
      const ErrorSums own = outcome.sums;
      outcome.sums = member.sums;
      outcome.sums.elements = own.elements;
      outcome.sums.introduced = own.introduced;
    }
  if (contracts.size() != 1 || group.answered || group.exact_angles) return;
  show_diffuse(place, inputs, pass, group);
  try_others(place, inputs, pass, group);
}

void OpJudge::judge_under_each(const std::vector<RoundingContract>& contracts, const Place& place,
                               const std::vector<Place>& inputs, const JudgedPass& pass,
                               Group& group) {
  std::vector<size_t> order(contracts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto out = std::stable_partition(order.begin(), order.end(),
                                         [&](size_t c) { return !contracts_.is_out(place, c); });
  for (const size_t c : std::span(order.begin(), out))
    judge_under(contracts[c], place, inputs, pass, group);
  // A contract that is out is tried only where a node fits none of the others, which costs one
  // judgement a contract where a node is wrong.
  const auto fits = [](const auto& m) { return std::ranges::any_of(*m.outcomes, may_round_so); };
  if (!std::ranges::all_of(group.members, fits))
    for (const size_t c : std::span(out, order.end()))
      judge_under(contracts[c], place, inputs, pass, group);
  if (group.answered || out == order.end()) return;
  for (Group::Member& member : group.members) {
    const NodeOutcomes tried = *member.outcomes;
    member.outcomes->resize(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      NodeOutcome& outcome = (*member.outcomes)[order[i]];
      outcome = i < tried.size() ? tried[i] : *std::ranges::find_if(tried, may_round_so);
      outcome.tried = i < tried.size();
    }
  }
}

void OpJudge::judge_under(RoundingContract contract, const Place& place,
                          const std::vector<Place>& inputs, const JudgedPass& pass, Group& group) {
  if (group.answered) return;
  blur(contract, inputs, group);
  // No pool is of one contract where nodes may be of either of two.
  // Nor where rows have errors in common that come from what is hidden.
  const RoundingContract first = candidates(place).front();
  // Nor of nodes that may be held to other angles yet, or that are judged a second time.
  const bool pools =
      stricter_of(first) == first && !group.blurred && !group.exact_angles && !group.merged;
  group.pool = pools ? &pools_[{key_of(place), contract}] : nullptr;
  begin_measures(place, group, group.pool, ProfiledRows::wrong);
  if (group.has_scales(contract, inputs)) group.scales = &scales_[{key_of(place), contract}];
  const bool measured = measure_under(contract, place, inputs, pass, group);
  group.scales = nullptr;
  if (!measured) {
    group.answered = true;
    return;
  }
  for (size_t i = 0; i < group.members.size(); ++i)
    group.members[i].outcomes->push_back(outcome_of_member(contract, place, group, i));
}

void OpJudge::begin_measures(const Place& place, Group& group, PlacePool* pool,
                             ProfiledRows profiled) const {
  for (Group::Member& member : group.members) {
    member.meter.emplace(meter_of(place, group, *member.node, pool, profiled));
    member.measure.reset();
    member.scales = {};
  }
}

Measure OpJudge::Group::Member::measured() const {
  Measure made = measure ? *measure : meter->finish();
  for (Statistic& statistic : scales.statistics(kFalseAlarm))
    made.statistics.push_back(std::move(statistic));
  drop_missing(made.statistics);
  return made;
}

NodeOutcome OpJudge::outcome_of_member(RoundingContract contract, const Place& place,
                                       const Group& group, size_t i) {
  const OpKind op = place.point->op;
  const Group::Member& member = group.members[i];
  Measure measure = member.measured();
  // Limits are learnt, and lowered, where one rounding is all there is: other contracts and hidden
  // inputs have budgets of another make.
  if (contract == RoundingContract::fused && !group.blurred && !group.merged) {
    if (place.point->node_class != NodeClass::exact && !group.exact_angles)
      reached_[op].add(reached_by(measure));
    tighten(measure.statistics, options_.limits.of(op, dtype_at(place)));
  }
  NodeOutcome outcome =
      outcome_of(std::move(measure), without_rows(group.tensor->shape), options_.limit_scale);
  outcome.reads_unstored = group.blurred && !group.blurred_inputs;
  const std::optional<Order> order = member.orders.of_all();
  if (outcome.verdict == Verdict::introduced && order)
    outcome.finding.rule += fmt::format("{}the same numbers in another order: {}",
                                        outcome.finding.rule.empty() ? "" : "; ", text_of(*order));
  return outcome;
}

bool OpJudge::is_of_one_element(const Group& group, size_t i) {
  const Group::Member& member = group.members[i];
  const NodeOutcome& outcome = member.outcomes->front();
  int64_t wrong = 0;
  for (const WrongRow& row : outcome.wrong) wrong += std::ranges::count(row.elements, true);
  return outcome.finding.statistic == StatisticKind::max_error && wrong == 1 &&
         std::ssize(member.node->rows) * without_rows(group.tensor->shape).count() >= kManyBeside;
}

void OpJudge::try_others(const Place& place, const std::vector<Place>& inputs,
                         const JudgedPass& pass, Group& group) {
  const RoundingContract own = candidates(place).front();
  std::vector<size_t> wrong;
  for (size_t i = 0; i < group.members.size(); ++i)
    if (group.members[i].outcomes->front().verdict == Verdict::introduced) wrong.push_back(i);
  if (wrong.empty()) return;
  OtherContracts& others = others_[key_of(place)];
  if (others.tried >= kMostTried) return;
  if (others.others.empty())
    for (const RoundingContract contract : contracts_of(place.point->op, traits_of(place)))
      if (contract != own) others.others.push_back({contract});
  if (others.others.empty()) return;
  others.tried += std::ssize(wrong);
  for (const size_t i : wrong) others.odd += is_of_one_element(group, i);
  for (OtherContracts::Other& other : others.others) {
    blur(other.contract, inputs, group);
    begin_measures(place, group, nullptr, ProfiledRows::none);
    if (!measure_under(other.contract, place, inputs, pass, group)) return;
    for (const size_t i : wrong)
      if (!outcome_of(group.members[i].measured(), without_rows(group.tensor->shape),
                      options_.limit_scale)
               .is_finding())
        ++other.fits;
  }
}

void OpJudge::show_diffuse(const Place& place, const std::vector<Place>& inputs,
                           const JudgedPass& pass, Group& group) {
  const auto diffuse = [](const Group::Member& member) {
    const NodeOutcome& outcome = member.outcomes->front();
    return outcome.verdict == Verdict::introduced && outcome.errors.elements == 0;
  };
  const auto nodes = std::ranges::count_if(group.members, diffuse);
  int64_t& shown = shown_[key_of(place)];
  if (nodes == 0 || shown >= kMostShown) return;
  shown += nodes;
  // The first measurement kept the errors of wrong elements alone; here no element is wrong, and
  // all of them are kept.
  blur(candidates(place).front(), inputs, group);
  begin_measures(place, group, nullptr, ProfiledRows::all);
  if (!measure_under(candidates(place).front(), place, inputs, pass, group)) return;
  for (Group::Member& member : group.members)
    if (diffuse(member)) member.outcomes->front().errors = member.meter->finish().errors;
}

bool OpJudge::knows(const Place& input, const JudgedPass& pass, const NodeRows& node) const {
  const HiddenTensor* hidden = hidden_.find(input);
  return trouble_with(input, pass, node).empty() &&
         (!hidden || hidden->deviation.data.view().empty());
}

void OpJudge::blur(RoundingContract contract, const std::vector<Place>& inputs,
                   Group& group) const {
  const bool of_sum = is_of_sum(contract) && inputs.at(0).point->op == OpKind::add;
  group.blurred = of_sum ? !group.knows_sum : group.blurred_inputs;
}

std::vector<Place> OpJudge::read_by(RoundingContract contract, const std::vector<Place>& inputs,
                                    const Group& group) const {
  if (is_of_sum(contract) && inputs.at(0).point->op == OpKind::add && group.knows_sum)
    return graph_.inputs_of(inputs[0]);
  return inputs;
}

}  // namespace lockstep
