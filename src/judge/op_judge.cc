#include "src/judge/op_judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>

#include "src/judge/budget.h"
#include "src/judge/cache_read.h"

namespace lockstep {
namespace {

// The oracle holds so much at once: more is asked for in blocks of rows. Small ones find the memory
// of the last one, where large ones get new pages, which cost more than what is computed there.
// Blocks of very few rows may be larger, as these read a large weight, of the head's say, for
// little.
constexpr int64_t kBlockBytes = 64 << 20, kMostBlockBytes = 512 << 20, kFewRows = 64;
// About twelve fp64 values an element: result, magnitudes, budget, the two models, temporaries.
constexpr int64_t kBytesPerElement = 100;
// Elements of a block that are worth waking threads for, and that are measured before they are
// added up: a number each is kept until then.
constexpr int64_t kSharedElements = 1 << 16;
constexpr size_t kAtATime = 1 << 20;
constexpr int64_t kMany = 4096;  // elements whose share and gain are worth learning
// Findings of a place that are judged again under other contracts: they agree or they do not.
constexpr int64_t kMostTried = 16;
// Nodes of a place that are measured again for where their errors lie, when no element shows it.
constexpr int64_t kMostShown = 16;

Shape without_rows(const Shape& shape) { return Shape(shape.extents().subspan(1)); }

// One row of a tensor as fp64, or nothing.
std::span<const double> row_of(const TensorView& tensor, int64_t row, std::vector<double>& into) {
  if (tensor.empty()) return {};
  into.resize(static_cast<size_t>(tensor.row_size()));
  widen(tensor, row * tensor.row_size(), into);
  return into;
}

}  // namespace

struct OpJudge::Group {
  struct Member {
    Member(const NodeRows* node_, NodeOutcomes* outcomes_) : node(node_), outcomes(outcomes_) {}
    const NodeRows* node;
    NodeOutcomes* outcomes;
    std::optional<Meter> meter;  // of the contract that is being tried
    ErrorSums sums;
  };
  std::vector<Member> members;
  std::vector<Row> rows;         // of all members
  std::vector<int32_t> tokens;   // fed at the rows
  std::vector<int64_t> lengths;  // of the rows' requests, after the pass
  std::vector<size_t> owner;     // member of each row
  CacheRead cache;               // attention: what its one request reads
  const RecordedTensor* tensor = nullptr;
  bool compared = false;  // with the two models, which no contract changes
  bool answered = false;  // no number says what came out
};

struct OpJudge::Block {
  const Place& place;
  DType dtype;
  size_t first;  // row of the group
  std::span<const Row> rows;
  const Exact& exact;
  TensorView got, exact_model, rounded_model;
  ThreadPool* threads;
};

struct OpJudge::Measured {
  Meter::Row row;
  ErrorSums sums;
};

OpJudge::OpJudge(Oracle& oracle, const Graph& graph, OpJudgeOptions options)
    : oracle_(oracle),
      graph_(graph),
      options_(std::move(options)),
      contracts_(options_.contracts) {}

const PlacePool* OpJudge::pooled(const Place& place, RoundingContract contract) const {
  const auto pool = pools_.find({key_of(place), contract});
  return pool == pools_.end() ? nullptr : &pool->second;
}

std::vector<Statistic> OpJudge::pooled_statistics(const Place& place,
                                                  RoundingContract contract) const {
  const PlacePool* pool = pooled(place, contract);
  if (!pool) return {};
  std::vector<Statistic> statistics = pool->statistics(dtype_at(place));
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

OtherContracts OpJudge::other_contracts(const Place& place) const {
  const auto found = others_.find(key_of(place));
  return found == others_.end() ? OtherContracts{} : found->second;
}

std::map<OpKind, Reached> OpJudge::reached() const {
  std::map<OpKind, Reached> reached = reached_;
  for (const auto& [key, pool] : pools_) {
    const Point& p = kPoints[static_cast<size_t>(key.first.first)];
    const Moments& m = pool.sum();
    // Shares and gains of few elements are chance.
    if (key.second != RoundingContract::fused || !reached.contains(p.op) || m.elements < kMany)
      continue;
    const double gain = m.power > 0 ? std::fabs(m.cross) / m.power : 0;
    reached[p.op].add({.share = m.share(), .gain = gain});
  }
  return reached;
}

void OpJudge::begin_pass(const PassView& pass) {
  misshapen_.clear();
  for (const Point& p : kPoints)
    if (pass.shows(p)) seen_.insert(order_of(p));
}

DType OpJudge::dtype_at(const Place& place) const { return dtype_of(*place.point, options_.dtype); }

ContractTraits OpJudge::traits_of(const Place& place) const {
  const bool linear = place.point->op == OpKind::linear;
  return {.dtype = dtype_at(place), .has_bias = linear && oracle_.has_bias(place)};
}

std::vector<RoundingContract> OpJudge::candidates(const Place& place) const {
  if (place.point->is_cache() || row_of(place.point->op).makes_indices)
    return {RoundingContract::fused};
  return contracts_.candidates(place, traits_of(place));
}

bool OpJudge::rejected(const Place& place, const std::vector<Place>& inputs, const JudgedPass& pass,
                       const NodeRows& node, DType dtype, NodeOutcome& outcome) const {
  const Trouble trouble = pass.seen.trouble(place, dtype, node);
  if (trouble.absent && options_.partial) {
    outcome = inconclusive("the trace was taken of a selection that leaves them out");
  } else if (trouble.absent && !has_seen(*place.point)) {
    outcome = inconclusive(fmt::format("the trace has no tensor of {}", place.point->name));
    outcome.unrecorded = true;
  } else if (!trouble.text.empty()) {
    outcome = structural(trouble.text, node.rows.front().position);
  } else if (!place.point->is_cache() &&
             pass.seen.tensor(place, node.request)->data.view().empty()) {
    outcome = inconclusive("their tensors were kept as digests only");
  } else {
    for (const Place& input : inputs) {
      if (input.point->is_cache() || place.point->is_cache()) continue;
      const RecordedTensor* tensor = pass.seen.tensor(input, node.request);
      if (misshapen_.contains(key_of(input)) || !tensor || tensor->dtype != dtype_at(input) ||
          SelectedRows(tensor, node.rows).view().empty())
        outcome = inconclusive("an input of the op was not captured, or not as the model has it");
    }
  }
  return outcome.verdict != Verdict::bitwise;
}

bool OpJudge::join(const Place& place, const std::vector<Place>& inputs, const JudgedPass& pass,
                   const NodeRows& node, Group& group, NodeOutcomes& outcomes) {
  group.tensor = pass.seen.tensor(place, node.request);
  if (place.point->op == OpKind::attention) {
    const Place& kv = inputs.at(1);
    group.cache = CacheRead(pass.seen.tensor(kv, node.request), pass.history);
    std::string trouble = group.cache.trouble();
    if (misshapen_.contains(key_of(kv)) ||
        !pass.seen.trouble(kv, options_.dtype, node).text.empty())
      trouble = "attn.kv, which the op reads, was not captured, or not as the model has it";
    if (!trouble.empty()) {
      outcomes = {inconclusive(trouble)};
      return false;
    }
  }
  group.owner.insert(group.owner.end(), node.rows.size(), group.members.size());
  group.rows.insert(group.rows.end(), node.rows.begin(), node.rows.end());
  group.tokens.insert(group.tokens.end(), node.tokens.begin(), node.tokens.end());
  group.lengths.insert(group.lengths.end(), node.rows.size(), pass.seen.length_of(node.request));
  group.members.emplace_back(&node, &outcomes);
  return true;
}

std::vector<NodeOutcomes> OpJudge::judge(const Place& place, const std::vector<Place>& inputs,
                                         const JudgedPass& pass) {
  const std::vector<NodeRows>& nodes = pass.seen.nodes_of(*place.point);
  std::vector<NodeOutcomes> outcomes(nodes.size());
  const OpKind op = place.point->op;
  Group group;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeRows& node = nodes[i];
    NodeOutcome single;
    if (rejected(place, inputs, pass, node, dtype_at(place), single)) {
      outcomes[i] = {std::move(single)};
    } else if (op == OpKind::cache) {
      outcomes[i] = {judge_cache(place, inputs, pass, node)};
    } else if (row_of(op).makes_indices) {
      outcomes[i] = {judge_indices(place, inputs, pass, node)};
    } else if (join(place, inputs, pass, node, group, outcomes[i]) && op == OpKind::attention) {
      judge_numbers(place, inputs, pass, group);  // of one request at a time
      group = {};
    }
  }
  if (!group.members.empty()) judge_numbers(place, inputs, pass, group);
  return outcomes;
}

Meter OpJudge::meter_of(const Place& place, const Group& group, const NodeRows& node,
                        PlacePool* pool, ProfiledRows profiled) const {
  const OpKind op = place.point->op;
  return {{.dtype = dtype_at(place),
           .node_class = place.point->node_class,
           .row_shape = without_rows(group.tensor->shape),
           .page_size = options_.page_size,
           .may_lose_weights =
               op == OpKind::attention || op == OpKind::silu_mul || op == OpKind::softmax,
           .profiled = profiled},
          std::ssize(node.rows),
          pool};
}

void OpJudge::judge_numbers(const Place& place, const std::vector<Place>& inputs,
                            const JudgedPass& pass, Group& group) {
  const std::vector<RoundingContract> contracts = candidates(place);
  const bool may_tf32 = contracts == std::vector{RoundingContract::tf32};
  if (may_tf32) {
    // A library picks its kernels by shape, and some of them round nothing: a node that is right in
    // fp32 is right.
    judge_under(RoundingContract::fused, place, inputs, pass, group);
    judge_under(RoundingContract::tf32, place, inputs, pass, group);
    for (Group::Member& member : group.members)
      if (NodeOutcomes& both = *member.outcomes; both.size() == 2)
        both.erase(is_finding(both[0]) ? both.begin() : both.begin() + 1);
  } else {
    judge_under_each(contracts, place, inputs, pass, group);
  }
  for (Group::Member& member : group.members)
    for (NodeOutcome& outcome : *member.outcomes) {
      const ErrorSums own = outcome.sums;
      outcome.sums = member.sums;
      outcome.sums.elements = own.elements;
      outcome.sums.introduced = own.introduced;
    }
  if (contracts.size() != 1 || group.answered) return;
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
  // No pool is of one contract where nodes may be of either of two.
  const bool pools = candidates(place).front() != RoundingContract::tf32;
  for (Group::Member& member : group.members)
    member.meter.emplace(meter_of(place, group, *member.node,
                                  pools ? &pools_[{key_of(place), contract}] : nullptr,
                                  ProfiledRows::wrong));
  if (!measure_under(contract, place, inputs, pass, group)) {
    group.answered = true;
    return;
  }
  for (size_t i = 0; i < group.members.size(); ++i)
    group.members[i].outcomes->push_back(outcome_of_member(contract, place, group, i));
}

bool OpJudge::measure_under(RoundingContract contract, const Place& place,
                            const std::vector<Place>& inputs, const JudgedPass& pass,
                            Group& group) {
  const int64_t row_bytes = group.tensor->data.view().row_size() * kBytesPerElement;
  const auto rows_in = [&](int64_t bytes) {
    return std::max<int64_t>(1, bytes / std::max<int64_t>(1, row_bytes));
  };
  const auto block =
      static_cast<size_t>(std::clamp(kFewRows, rows_in(kBlockBytes), rows_in(kMostBlockBytes)));
  for (size_t first = 0; first < group.rows.size(); first += block)
    if (!judge_block(contract, place, inputs, pass, group, first,
                     std::min(block, group.rows.size() - first)))
      return false;
  group.compared = true;
  return true;
}

NodeOutcome OpJudge::outcome_of_member(RoundingContract contract, const Place& place,
                                       const Group& group, size_t i) {
  const OpKind op = place.point->op;
  Measure measure = group.members[i].meter->finish();
  if (contract == RoundingContract::fused) {
    if (place.point->node_class != NodeClass::exact) reached_[op].add(reached_by(measure));
    tighten(measure.statistics, options_.limits.of(op, dtype_at(place)));
  }
  return outcome_of(std::move(measure), without_rows(group.tensor->shape), options_.limit_scale);
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
  for (OtherContract& other : others.others) {
    for (Group::Member& member : group.members)
      member.meter.emplace(meter_of(place, group, *member.node, nullptr, ProfiledRows::none));
    if (!measure_under(other.contract, place, inputs, pass, group)) return;
    for (const size_t i : wrong)
      if (!is_finding(outcome_of(group.members[i].meter->finish(),
                                 without_rows(group.tensor->shape), options_.limit_scale)))
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
  for (Group::Member& member : group.members)
    member.meter.emplace(meter_of(place, group, *member.node, nullptr, ProfiledRows::all));
  if (!measure_under(candidates(place).front(), place, inputs, pass, group)) return;
  for (Group::Member& member : group.members)
    if (diffuse(member)) member.outcomes->front().errors = member.meter->finish().errors;
}

std::vector<Place> OpJudge::read_by(RoundingContract contract,
                                    const std::vector<Place>& inputs) const {
  const bool of_sum =
      contract == RoundingContract::unrounded_sum || contract == RoundingContract::hf_unrounded_sum;
  if (of_sum && inputs.at(0).point->op == OpKind::add) return graph_.inputs_of(inputs[0]);
  return inputs;
}

bool OpJudge::judge_block(RoundingContract contract, const Place& place,
                          const std::vector<Place>& inputs, const JudgedPass& pass, Group& group,
                          size_t first, size_t count) {
  const std::span<const Row> rows = std::span(group.rows).subspan(first, count);
  OracleCall call{.place = place, .dtype = options_.dtype, .contract = contract, .rows = rows};
  call.tokens = std::span(group.tokens).subspan(first, count);
  call.lengths = std::span(group.lengths).subspan(first, count);
  if (place.point->op == OpKind::attention) call.keys_values = group.cache.keys_values();
  std::vector<SelectedRows> picked;
  const auto pick = [&](const std::vector<Place>& places) {
    picked.clear();
    for (const Place& input : places)
      if (!input.point->is_cache())
        picked.emplace_back(pass.seen.tensor(input, rows.front().request), rows);
    return std::ranges::none_of(picked,
                                [](const SelectedRows& rows) { return rows.view().empty(); });
  };
  if (!pick(read_by(contract, inputs))) {  // its own inputs are known to be there, a sum's are not
    if (contracts_.is_declared(*place.point) && contract == candidates(place).front()) {
      for (Group::Member& member : group.members)
        *member.outcomes = {inconclusive("what the norm's input is the sum of was not captured")};
      return false;
    }
    pick(inputs);
  }
  for (const SelectedRows& input : picked) call.inputs.push_back(input.view());

  const Exact exact = oracle_.evaluate(call);
  const SelectedRows got(group.tensor, rows);
  if (exact.shape != got.view().shape) {
    for (Group::Member& member : group.members)
      *member.outcomes = {structural(
          fmt::format("shape {} was wanted, found {}", exact.shape.text(), got.view().shape.text()),
          member.node->rows.front().position)};
    misshapen_.insert(key_of(place));
    return false;
  }
  const auto reference = [&](const Pass* model) {
    return SelectedRows(model && !group.compared ? model->find(*place.point, place.layer) : nullptr,
                        rows);
  };
  const SelectedRows exact_model = reference(pass.exact), rounded_model = reference(pass.rounded);
  measure_block({place, dtype_at(place), first, rows, exact, got.view(), exact_model.view(),
                 rounded_model.view(), threads_for(got.view().count())},
                group);
  return true;
}

Budget OpJudge::budget_of_row(const Block& block, size_t row) const {
  const auto size = static_cast<size_t>(block.got.row_size());
  const OpKind op = block.place.point->op;
  Budget budget = budget_of(op, block.exact, block.dtype, {.first = row * size, .count = size});
  // Limits are measured of kernels that round once.
  if (block.exact.contract == RoundingContract::fused)
    tighten(budget, std::span(block.exact.want).subspan(row * size, size), block.dtype,
            options_.limits.of(op, block.dtype));
  return budget;
}

ThreadPool* OpJudge::threads_for(int64_t elements) {
  if (elements < kSharedElements) return nullptr;
  if (!threads_) {
    const int all = static_cast<int>(std::thread::hardware_concurrency());
    threads_ =
        std::make_unique<ThreadPool>(options_.threads > 0 ? options_.threads : std::max(1, all));
  }
  return threads_.get();
}

OpJudge::Measured OpJudge::measure_row(const Block& block, const Group& group, size_t i) const {
  const auto size = static_cast<size_t>(block.got.row_size());
  const auto row = static_cast<int64_t>(i);
  const Group::Member& member = group.members[group.owner[block.first + i]];
  const std::span<const double> want = std::span(block.exact.want).subspan(i * size, size);
  std::vector<double> seen, of_exact, of_rounded;
  row_of(block.got, row, seen);
  const Budget b = budget_of_row(block, i);
  Measured measured;
  measured.row = member.meter->measure(
      block.rows[i].position, {seen, want, b.limit, b.variance, b.shared, b.misround, b.gain});
  measured.sums.add_row(seen, want, row_of(block.exact_model, row, of_exact),
                        row_of(block.rounded_model, row, of_rounded), block.dtype);
  return measured;
}

// Rows are measured by all threads, some at a time, and added in their order, so that the result
// does not depend on how many threads there are.
void OpJudge::measure_block(const Block& block, Group& group) {
  const auto size = static_cast<size_t>(block.got.row_size()), count = block.rows.size();
  const size_t some = std::max<size_t>(1, kAtATime / std::max<size_t>(1, size));
  for (size_t first = 0; first < count; first += some) {
    std::vector<Measured> all(std::min(some, count - first));
    parallel_for(block.threads, std::ssize(all), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
        all[i] = measure_row(block, group, first + i);
    });
    const auto owner_of = [&](size_t i) { return group.owner[block.first + first + i]; };
    for (size_t i = 0, end = 0; i < all.size(); i = end) {
      while (end < all.size() && owner_of(end) == owner_of(i)) ++end;
      Group::Member& member = group.members[owner_of(i)];
      std::vector<Meter::Row> rows;
      for (size_t j = i; j < end; ++j) {
        rows.push_back(std::move(all[j].row));
        member.sums.add(all[j].sums);
      }
      member.meter->add(rows, block.threads);
    }
  }
}

}  // namespace lockstep
