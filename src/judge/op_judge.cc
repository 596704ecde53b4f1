#include "src/judge/op_judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "src/judge/budget.h"
#include "src/judge/cache_read.h"

namespace lockstep {
namespace {

// What the oracle may hold at once: more is asked for in blocks of rows. Small ones find the memory
// that the last one had, where large ones are given new memory each time, whose pages cost more
// than what is computed there. Blocks of very few rows read a large weight for little, as that of
// the head of a large vocabulary, and may be larger.
constexpr int64_t kBlockBytes = 64 << 20, kMostBlockBytes = 512 << 20, kFewRows = 64;
// About twelve fp64 values an element: result, magnitudes, budget, the two models, temporaries.
constexpr int64_t kBytesPerElement = 100;
// Elements of a block that are worth waking threads for, and that are measured before they are
// added up: a number each is kept until then.
constexpr int64_t kSharedElements = 1 << 16;
constexpr size_t kAtATime = 1 << 20;
constexpr int64_t kMany = 4096;  // elements whose share and gain are worth learning
// A node of fewer may have nothing that a chain of ops rounds otherwise than one kernel.
constexpr int64_t kTellingRows = 4, kTellingElements = 256;

std::pair<int, int> key_of(const Place& place) { return {order_of(*place.point), place.layer}; }

Shape without_rows(const Shape& shape) { return Shape(shape.extents().subspan(1)); }

NodeOutcome inconclusive(std::string reason) {
  NodeOutcome outcome;
  outcome.verdict = Verdict::inconclusive;
  outcome.reason = std::move(reason);
  return outcome;
}

NodeOutcome structural(std::string rule, const NodeRows& node) {
  NodeOutcome outcome;
  outcome.verdict = Verdict::structural;
  outcome.finding.rule = std::move(rule);
  outcome.finding.position = node.rows.front().position;
  return outcome;
}

Reached reached_by(const Measure& measure) {
  Reached reached{.inner = measure.inner};
  for (const Statistic& statistic : measure.statistics) {
    const std::string name = statistic.name;
    if (name == "T2" || name == "T4") reached.rms = std::max(reached.rms, statistic.value);
  }
  return reached;
}

// One row of a tensor as fp64, or nothing.
std::span<const double> row_of(const TensorView& tensor, int64_t row, std::vector<double>& into) {
  if (tensor.empty()) return {};
  into.resize(static_cast<size_t>(tensor.row_size()));
  widen(tensor, row * tensor.row_size(), into);
  return into;
}

// The tolerances of torch.testing.assert_close where none are given.
bool close_for_torch(double got, double reference, DType dtype) {
  const double relative = dtype == DType::f32 ? 1.3e-6 : dtype == DType::f16 ? 1e-3 : 1.6e-2;
  return within(std::fabs(got - reference), 1e-5 + relative * std::fabs(reference));
}

// The parts of a row's error that need the reference models.
void add_errors(ErrorSums& sums, std::span<const double> got, std::span<const double> want,
                std::span<const double> exact, std::span<const double> rounded, DType dtype) {
  if (exact.size() != got.size() || rounded.size() != got.size()) return;
  for (size_t i = 0; i < got.size(); ++i) {
    const double total = got[i] - exact[i], propagated = want[i] - exact[i];
    const double floor = rounded[i] - exact[i];
    if (!close_for_torch(got[i], rounded[i], dtype)) ++sums.not_close;
    if (!std::isfinite(total) || !std::isfinite(propagated) || !std::isfinite(floor)) continue;
    ++sums.compared;
    sums.total += total * total;
    sums.propagated += propagated * propagated;
    sums.floor += floor * floor;
  }
}

// An index that is not among those of the row's largest values, beside one that should be there.
struct WrongIndex {
  bool found = false;
  bool unknown = false;  // it is the index of nothing
  double want = 0, got = 0;
};

// By value: which of several equal values are taken is not a matter of right or wrong, nor is their
// order.
WrongIndex wrong_index(const std::vector<double>& row, const std::vector<double>& indices) {
  std::vector<bool> taken(row.size(), false);
  WrongIndex wrong;
  for (const double index : indices) {
    const bool known = index >= 0 && index < static_cast<double>(row.size());
    if (!known || taken[static_cast<size_t>(index)])
      wrong = {.found = true, .unknown = !known, .got = index};
    if (wrong.found) break;
    taken[static_cast<size_t>(index)] = true;
  }
  // The largest of those left out must not be above the smallest of those taken.
  const auto out = [&](size_t i) { return !taken[i]; };
  size_t best = row.size(), least = row.size();
  for (size_t i = 0; i < row.size(); ++i) {
    size_t& at = out(i) ? best : least;
    if (at == row.size() || (out(i) ? row[i] > row[at] : row[i] < row[at])) at = i;
  }
  if (best < row.size()) wrong.want = static_cast<double>(best);
  if (wrong.found || best == row.size() || least == row.size()) return wrong;
  wrong.found = row[best] > row[least];
  wrong.got = static_cast<double>(least);
  return wrong;
}

}  // namespace

struct OpJudge::Group {
  struct Member {
    Member(const NodeRows* node_, NodeOutcome* outcome_) : node(node_), outcome(outcome_) {}
    const NodeRows* node;
    NodeOutcome* outcome;
    std::vector<Meter> meters;  // one a schema
    ErrorSums sums;
  };
  std::vector<Member> members;
  std::vector<Row> rows;         // of all members
  std::vector<int32_t> tokens;   // fed at the rows
  std::vector<int64_t> lengths;  // of the rows' requests, after the pass
  std::vector<size_t> owner;     // member of each row
  CacheRead cache;               // attention: what its one request reads
  const KeptTensor* tensor = nullptr;
  std::span<const Schema> schemas;  // that the place is judged under
};

struct OpJudge::Block {
  OpKind op;
  size_t first;  // row of the group
  std::span<const Row> rows;
  const Exact& exact;
  TensorView got, exact_model, rounded_model;
  ThreadPool* threads;
};

struct OpJudge::Measured {
  std::vector<Meter::Row> rows;  // one a schema
  ErrorSums sums;
};

OpJudge::OpJudge(Oracle& oracle, OpJudgeOptions options)
    : oracle_(oracle), options_(std::move(options)), schemas_(options_.schema) {}

Moments OpJudge::pooled(const Place& place) const {
  const auto pool = pools_.find({key_of(place), schemas_.of(*place.point)});
  return pool == pools_.end() ? Moments{} : pool->second.sum();
}

std::map<OpKind, Reached> OpJudge::reached() const {
  std::map<OpKind, Reached> reached = reached_;
  for (const auto& [key, pool] : pools_) {
    const Point& p = kPoints[static_cast<size_t>(key.first.first)];
    const Moments& m = pool.sum();
    // Shares and gains of few elements are chance.
    if (key.second != Schema::fused || !reached.contains(p.op) || m.elements < kMany) continue;
    const double gain = m.power > 0 ? std::fabs(m.cross) / m.power : 0;
    const auto n = static_cast<double>(m.elements);
    reached[p.op].add({.share = static_cast<double>(m.misrounded) / n, .gain = gain});
  }
  return reached;
}

void OpJudge::begin_pass(const SeenPass& pass) {
  misshapen_.clear();
  for (const Point& p : kPoints)
    if (pass.shows(p)) seen_.insert(order_of(p));
}

DType OpJudge::dtype_at(const Place& place) const {
  return makes_indices(place.point->op) ? DType::i32 : options_.dtype;
}

bool OpJudge::measured(OpKind op) const {
  return !rounds_operands(op, options_.dtype, options_.accumulator);
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
    outcome = structural(trouble.text, node);
  } else if (place.point->op != OpKind::cache &&
             pass.seen.tensor(place, node.request)->data.view().empty()) {
    outcome = inconclusive("their tensors were kept as digests only");
  } else {
    for (const Place& input : inputs) {
      if (input.point->op == OpKind::cache || place.point->op == OpKind::cache) continue;
      const KeptTensor* tensor = pass.seen.tensor(input, node.request);
      if (misshapen_.contains(key_of(input)) || !tensor || tensor->dtype != dtype_at(input) ||
          PickedRows(tensor, node.rows).view().empty())
        outcome = inconclusive("an input of the op was not captured, or not as the model has it");
    }
  }
  return outcome.verdict != Verdict::bitwise;
}

std::vector<NodeOutcome> OpJudge::judge(const Place& place, const std::vector<Place>& inputs,
                                        const JudgedPass& pass) {
  const std::vector<NodeRows>& nodes = pass.seen.nodes_of(*place.point);
  std::vector<NodeOutcome> outcomes(nodes.size());
  const OpKind op = place.point->op;
  const DType dtype = dtype_at(place);
  Group group;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeRows& node = nodes[i];
    if (rejected(place, inputs, pass, node, dtype, outcomes[i])) continue;
    if (op == OpKind::cache) {
      outcomes[i] = judge_cache(place, inputs, pass, node);
      continue;
    }
    if (makes_indices(op)) {
      outcomes[i] = judge_indices(place, inputs, pass, node);
      continue;
    }
    group.tensor = pass.seen.tensor(place, node.request);
    if (op == OpKind::attention) {
      const Place& kv = inputs.at(1);
      group.cache = CacheRead(pass.seen.tensor(kv, node.request), pass.history);
      std::string trouble = group.cache.trouble();
      if (misshapen_.contains(key_of(kv)) || !pass.seen.trouble(kv, dtype, node).text.empty())
        trouble = "attn.kv, which the op reads, was not captured, or not as the model has it";
      if (!trouble.empty()) {
        outcomes[i] = inconclusive(trouble);
        continue;
      }
    }
    group.owner.insert(group.owner.end(), node.rows.size(), group.members.size());
    group.rows.insert(group.rows.end(), node.rows.begin(), node.rows.end());
    group.tokens.insert(group.tokens.end(), node.tokens.begin(), node.tokens.end());
    group.lengths.insert(group.lengths.end(), node.rows.size(), pass.seen.length_of(node.request));
    Group::Member& member = group.members.emplace_back(&node, &outcomes[i]);
    group.schemas = schemas_.candidates(*place.point);
    for (const Schema schema : group.schemas)
      member.meters.emplace_back(options_.dtype, place.point->node_class,
                                 without_rows(group.tensor->shape), std::ssize(node.rows),
                                 options_.page_size, &pools_[{key_of(place), schema}]);
    if (op != OpKind::attention) continue;  // of one request at a time
    judge_numbers(place, inputs, pass, group);
    group = {};
  }
  if (!group.members.empty()) judge_numbers(place, inputs, pass, group);
  return outcomes;
}

void OpJudge::judge_numbers(const Place& place, const std::vector<Place>& inputs,
                            const JudgedPass& pass, Group& group) {
  const Shape& shape = group.tensor->shape;
  const int64_t row_bytes = group.tensor->data.view().row_size() * kBytesPerElement;
  const auto rows_in = [&](int64_t bytes) {
    return std::max<int64_t>(1, bytes / std::max<int64_t>(1, row_bytes));
  };
  const auto block =
      static_cast<size_t>(std::clamp(kFewRows, rows_in(kBlockBytes), rows_in(kMostBlockBytes)));
  for (size_t first = 0; first < group.rows.size(); first += block)
    if (!judge_block(place, inputs, pass, group, first, std::min(block, group.rows.size() - first)))
      return;
  for (size_t i = 0; i < group.members.size(); ++i)
    judge_member(place, without_rows(shape), group, i);
}

void OpJudge::judge_member(const Place& place, const Shape& row_shape, Group& group, size_t i) {
  Group::Member& member = group.members[i];
  std::vector<NodeOutcome> outcomes;
  const OpKind op = place.point->op;
  for (size_t s = 0; s < member.meters.size(); ++s) {
    Measure measure = member.meters[s].finish();
    if (group.schemas[s] == Schema::fused && place.point->node_class != NodeClass::exact)
      reached_[op].add(reached_by(measure));
    if (measured(op)) tighten(measure.statistics, options_.limits.of(op, options_.dtype));
    outcomes.push_back(outcome_of(std::move(measure), row_shape, options_.limit_scale));
  }
  const bool telling = std::ssize(member.node->rows) >= kTellingRows &&
                       outcomes.front().sums.elements >= kTellingElements;
  *member.outcome = std::move(outcomes[schemas_.choose(place, outcomes, telling)]);
  member.sums.elements = member.outcome->sums.elements;
  member.sums.introduced = member.outcome->sums.introduced;
  member.outcome->sums = member.sums;
}

bool OpJudge::judge_block(const Place& place, const std::vector<Place>& inputs,
                          const JudgedPass& pass, Group& group, size_t first, size_t count) {
  const std::span<const Row> rows = std::span(group.rows).subspan(first, count);
  OracleCall call{.place = place, .dtype = options_.dtype, .rows = rows};
  call.tokens = std::span(group.tokens).subspan(first, count);
  call.squares = rounds_operands(place.point->op, options_.dtype, options_.accumulator);
  call.overlap = place.point->op == OpKind::attention && group.schemas.back() != Schema::fused;
  call.lengths = std::span(group.lengths).subspan(first, count);
  if (place.point->op == OpKind::attention) call.keys_values = group.cache.keys_values();
  std::vector<PickedRows> picked;
  for (const Place& input : inputs)
    if (input.point->op != OpKind::cache)
      picked.emplace_back(pass.seen.tensor(input, rows.front().request), rows);
  for (const PickedRows& input : picked) call.inputs.push_back(input.view());

  const Exact exact = oracle_.evaluate(call);
  const PickedRows got(group.tensor, rows);
  if (exact.shape != got.view().shape) {
    for (Group::Member& member : group.members)
      *member.outcome = structural(
          fmt::format("shape {} was wanted, found {}", exact.shape.text(), got.view().shape.text()),
          *member.node);
    misshapen_.insert(key_of(place));
    return false;
  }
  const auto reference = [&](const Pass* model) {
    return PickedRows(model ? model->find(*place.point, place.layer) : nullptr, rows);
  };
  const PickedRows exact_model = reference(pass.exact), rounded_model = reference(pass.rounded);
  measure_block({place.point->op, first, rows, exact, got.view(), exact_model.view(),
                 rounded_model.view(), threads_for(got.view().count())},
                group);
  return true;
}

Budget OpJudge::budget_of_row(const Block& block, size_t row, Schema schema) const {
  const auto size = static_cast<size_t>(block.got.row_size());
  Budget budget = budget_of(block.op, block.exact, options_.dtype, schema, options_.accumulator,
                            {.first = row * size, .count = size});
  // Limits are measured of kernels that round once.
  if (schema == Schema::fused && measured(block.op))
    tighten(budget, std::span(block.exact.want).subspan(row * size, size), options_.dtype,
            options_.limits.of(block.op, options_.dtype));
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
  Measured measured;
  for (size_t s = 0; s < group.schemas.size(); ++s) {
    const Budget b = budget_of_row(block, i, group.schemas[s]);
    measured.rows.push_back(member.meters[s].measure(
        block.rows[i].position, {seen, want, b.limit, b.variance, b.shared, b.gain, b.misrounds}));
  }
  add_errors(measured.sums, seen, want, row_of(block.exact_model, row, of_exact),
             row_of(block.rounded_model, row, of_rounded), options_.dtype);
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
      for (size_t s = 0; s < group.schemas.size(); ++s) {
        std::vector<Meter::Row> rows;
        for (size_t j = i; j < end; ++j) rows.push_back(std::move(all[j].rows[s]));
        member.meters[s].add(rows, block.threads);
      }
      for (size_t j = i; j < end; ++j) member.sums.add(all[j].sums);
    }
  }
}

NodeOutcome OpJudge::judge_cache(const Place& place, const std::vector<Place>& inputs,
                                 const JudgedPass& pass, const NodeRows& node) {
  const KeptTensor& kv = *pass.seen.tensor(place, node.request);
  const KeptTensor* k = pass.seen.tensor(inputs.at(0), node.request);
  const Shape wanted =
      k && k->shape.rank() == 3 ? Shape{kv.shape[0], 2, k->shape[1], k->shape[2]} : kv.shape;
  if (kv.shape != wanted || kv.shape.rank() != 4) {
    misshapen_.insert(key_of(place));
    return structural(fmt::format("shape {} was wanted, found {}", wanted.text(), kv.shape.text()),
                      node);
  }
  return compare_cache(kv, place.layer, pass.history);
}

NodeOutcome OpJudge::judge_indices(const Place& place, const std::vector<Place>& inputs,
                                   const JudgedPass& pass, const NodeRows& node) {
  const PickedRows logits(pass.seen.tensor(inputs.at(0), node.request), node.rows);
  const PickedRows chosen(pass.seen.tensor(place, node.request), node.rows);
  const bool one = place.point->op == OpKind::argmax;
  NodeOutcome outcome;
  std::vector<double> row, indices;
  for (size_t i = 0; i < node.rows.size(); ++i) {
    row_of(logits.view(), static_cast<int64_t>(i), row);
    row_of(chosen.view(), static_cast<int64_t>(i), indices);
    const bool nan = std::ranges::any_of(row, [](double x) { return std::isnan(x); });
    const WrongIndex wrong = wrong_index(row, indices);
    // What reads indices of nothing cannot be computed, and is not judged.
    if (wrong.unknown) misshapen_.insert(key_of(place));
    const bool fine = !nan && !wrong.found;
    if (wrong.found && !nan) outcome.wrong.push_back({static_cast<int64_t>(i), {true}});
    if (fine || outcome.verdict != Verdict::bitwise) continue;
    Finding& finding = outcome.finding;
    outcome.verdict = nan ? Verdict::nonfinite : Verdict::introduced;
    outcome.passes_on = nan;
    outcome.position = finding.position = node.rows[i].position;
    finding.index = {finding.position};
    finding.want = wrong.want;
    finding.got = wrong.got;
    finding.budgets = std::numeric_limits<double>::infinity();
    finding.rule = nan   ? "propagated: the logits hold NaN"
                   : one ? "the token is not the largest logit"
                         : "the experts chosen are not those of the largest logits";
    if (!nan) finding.statistic = "T0", finding.value = 1;
  }
  return outcome;
}

}  // namespace lockstep
