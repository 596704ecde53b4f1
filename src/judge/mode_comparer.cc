// A row is found in the base by (place, request, position), compared, and overwritten by the base's
// bytes before the next op reads it. So each op of the mode starts from the base's inputs, and a
// difference is the op's own. The exception is a wrong read of the cache, which an attention cannot
// be relieved of: what it then makes is propagated.
#include "src/judge/mode_comparer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/judge/budget.h"
#include "src/judge/free_slots.h"
#include "src/stats/moments.h"
#include "src/stats/statistics.h"

namespace lockstep {
namespace {

uint64_t key_of(const Row& row) {
  return static_cast<uint64_t>(static_cast<uint32_t>(row.request)) << 32 |
         static_cast<uint32_t>(row.position);
}

size_t index_of(const std::vector<Place>& places, const Place& place) {
  return std::ranges::find(places, place) - places.begin();
}

bool sums_in_any_order(const Point& p) { return row_of(p.op).has_matrix; }

// [position, axes of the row ...] of element i of a row [1, axes ...].
std::vector<int64_t> index_in(const Shape& row, int32_t position, int64_t i) {
  std::vector<int64_t> index(row.rank(), position);
  for (int axis = row.rank() - 1; axis > 0; --axis) {
    index[axis] = i % row[axis];
    i /= row[axis];
  }
  return index;
}

}  // namespace

BaselineRows::BaselineRows(const Graph& graph)
    : graph_(graph), places_(graph.places()), spots_(places_.size()) {}

// Rows are found by request and position: another mode has them in other passes.
void BaselineRows::add(Pass pass) {
  std::erase_if(pass.tensors, [](const RecordedTensor& t) { return t.point->is_cache(); });
  for (const RecordedTensor& tensor : passes_.emplace_back(std::move(pass)).tensors) {
    const size_t place = index_of(places_, {tensor.point, tensor.layer});
    if (place == places_.size() || tensor.data.view().empty()) continue;
    for (size_t i = 0; i < tensor.rows.size(); ++i)
      spots_[place][key_of(tensor.rows[i])] = {&tensor, static_cast<int64_t>(i)};
  }
}

TensorView BaselineRows::find(size_t place, const Row& row) const {
  const auto found = spots_[place].find(key_of(row));
  if (found == spots_[place].end()) return {};
  return found->second.tensor->data.view().slice(found->second.row, 1);
}

ModeComparer::ModeComparer(const BaselineRows& base, ModeComparer::Pairing pairing, Ledger& ledger)
    : base_(base), pairing_(std::move(pairing)), ledger_(ledger) {
  for (const Place& place : ledger.places()) {
    std::vector<size_t>& inputs = inputs_.emplace_back();
    for (const Place& input : base.graph().inputs_of(place))
      inputs.push_back(index_of(ledger.places(), input));
  }
}

void ModeComparer::begin(const PassInfo& pass) {
  pass_ = pass;
  entered_.clear();
  wrong_reads_.clear();
}

int32_t ModeComparer::base_of(int32_t request) const {
  const size_t i = request;
  return request >= 0 && i < pairing_.base_of.size() ? pairing_.base_of[i] : -1;
}

std::vector<ModeComparer::Group> ModeComparer::groups_of(std::span<const Row> rows) const {
  std::vector<Group> groups;
  for (size_t i = 0; i < rows.size(); ++i) {
    const int32_t request = rows[i].request;
    if (i == 0 || rows[i - 1].request != request)
      groups.push_back({request, base_of(request), i, 0});
    ++groups.back().count;
  }
  std::erase_if(groups, [](const Group& group) { return group.base < 0; });
  return groups;
}

// The base's row; of attn.kv what the base had to write: K, then V, in `joined`.
TensorView ModeComparer::wanted(size_t place, const Row& base_row,
                                std::vector<char>& joined) const {
  if (!ledger_.places()[place].point->is_cache()) return base_.find(place, base_row);
  joined.clear();
  Shape shape;
  DType dtype = DType::f32;
  for (size_t input : inputs_[place]) {
    const TensorView part = base_.find(input, base_row);
    if (part.empty() || part.shape.rank() != 3) return {};
    shape = {1, 2, part.shape[1], part.shape[2]};
    dtype = part.dtype;
    joined.insert(joined.end(), part.as<const char>(), part.as<const char>() + part.bytes());
  }
  return {joined.data(), dtype, Device::cpu, shape};
}

// The most that accumulating in another order does to both sides together, without the two half
// ulps.
double ModeComparer::limit(size_t place, const TensorView& want, const Row& base_row) const {
  const TensorView input = base_.find(inputs_[place].at(0), base_row);
  double squares = 0;  // of what is finite: beside an Inf everything would be allowed
  for (int64_t i = 0; i < want.count(); ++i)
    if (const double w = value_at(want, i); std::isfinite(w)) squares += w * w;
  const double rms = root_mean(squares, want.count());
  const auto terms = static_cast<double>(input.empty() ? 0 : input.count());
  return 2 * kLambda * terms * kAccumulatorRoundoff * rms;
}

// Ops that sum products may add in another order: n terms twice, within 2 lambda n u rms, and half
// an ulp of each store. All others have equal bits from equal inputs.
void ModeComparer::compare_row(size_t place, const TensorView& want, const TensorView& got,
                               int32_t position, NodeOutcome& outcome) const {
  if (std::memcmp(want.data, got.data, want.bytes()) == 0) return;
  // Other bytes are more than bitwise already: the elements say how much more.
  if (outcome.verdict == Verdict::bitwise) outcome.verdict = Verdict::rounding;
  const bool tolerant = sums_in_any_order(*ledger_.places()[place].point);
  const Row base_row{base_of(outcome.request), position};
  const double sums = tolerant ? limit(place, want, base_row) : 0;
  const std::vector<double> slack =
      pairing_.ranks
          ? pairing_.ranks->slack_of_sum(ledger_.places()[place], {outcome.request, position})
          : std::vector<double>();
  for (int64_t i = 0; i < want.count(); ++i) {
    const size_t bytes = size_of(want.dtype);
    const size_t at = i * bytes;
    if (std::memcmp(want.as<const char>() + at, got.as<const char>() + at, bytes) == 0) continue;
    const double w = value_at(want, i), g = value_at(got, i);
    if (!slack.empty() && w == g) continue;  // a sum of zeros has no sign of its own
    // Each of the two may be half a spacing off by its store, and off by its sums; both are right
    // then.
    double allowed = tolerant ? (ulp(w, want.dtype) + ulp(g, got.dtype)) / 2 + sums : 0;
    if (tolerant && !slack.empty()) allowed += slack.at(i);
    // Not a number when one of them is none: over any limit.
    const double budgets =
        allowed > 0 ? std::fabs(w - g) / allowed : std::numeric_limits<double>::infinity();
    Finding& finding = outcome.finding;
    if (within(budgets, 1)) {
      if (!(budgets > outcome.t1)) continue;
      outcome.t1 = budgets;
      outcome.position = position;
      continue;
    }
    ++finding.value;
    if (outcome.verdict == Verdict::introduced && !(budgets > finding.budgets)) continue;
    outcome.verdict = Verdict::introduced;
    outcome.position = finding.position = position;
    finding.index = index_in(want.shape, position, i);
    finding.want = w;
    finding.got = g;
    finding.budgets = std::isnan(budgets) ? std::numeric_limits<double>::infinity() : budgets;
  }
}

std::string ModeComparer::unwritten(size_t place, const Record& record, const Group& group) const {
  const Point& p = *ledger_.places()[place].point;
  if (!p.is_cache() && p != point("attn.k_rope") && p != point("attn.v")) return "";
  std::vector<int32_t> positions;
  for (size_t i = group.first; i < group.first + group.count; ++i) {
    TensorView halves = record.tensor.slice(i, 1);
    const int64_t count = p.is_cache() ? 2 : 1;  // K and V may be written each by itself
    halves.shape = {count, halves.count() / count};
    if (holds_fill(halves, 0, pairing_.fill) || holds_fill(halves, count - 1, pairing_.fill))
      positions.push_back(record.rows[i].position);
  }
  if (positions.empty()) return "";
  return fmt::format(
      "; nothing was written to the cache for {} of {} rows, position {} the first: they hold the "
      "{} of free slots",
      positions.size(), group.count, positions.front(),
      std::isnan(pairing_.fill) ? "NaN" : fmt::format("{:g}", pairing_.fill));
}

NodeOutcome ModeComparer::compare(size_t place, const Record& record, const Group& group) const {
  NodeOutcome outcome;
  outcome.place = static_cast<int>(place);
  outcome.pass = pass_.pass;
  outcome.request = group.request;
  const auto structural = [&](const Row& row, std::string rule) {
    outcome.verdict = Verdict::structural;
    outcome.finding = {.position = row.position, .rule = std::move(rule)};
    return outcome;
  };
  std::vector<char> joined;
  for (size_t i = group.first; i < group.first + group.count; ++i) {
    const Row& row = record.rows[i];
    const TensorView want = wanted(place, {group.base, row.position}, joined);
    if (want.empty())
      return structural(
          row, fmt::format("{} computed no such row, {} did", pairing_.base, pairing_.mode));
    const TensorView got = record.tensor.slice(i, 1);
    if (want.shape != got.shape || want.dtype != got.dtype)
      return structural(row, fmt::format("a row {} of {} has {} in {}", want.shape.text(),
                                         pairing_.base, got.shape.text(), pairing_.mode));
    compare_row(place, want, got, row.position, outcome);
  }
  if (outcome.verdict == Verdict::introduced) {
    outcome.finding.statistic =
        std::isfinite(outcome.finding.budgets) ? StatisticKind::max_error : StatisticKind::bits;
    const auto wrong = static_cast<int64_t>(outcome.finding.value);
    if (outcome.finding.statistic == StatisticKind::max_error)
      outcome.finding.value = outcome.t1 = outcome.finding.budgets, outcome.finding.limit = 1;
    outcome.finding.rule = fmt::format(
        "{} (its request {}) has one and {} the other, from equal inputs ({} elements "
        "differ)",
        pairing_.base, group.base, pairing_.mode, wrong);
    outcome.finding.rule += unwritten(place, record, group);
    outcome.finding.node.place = ledger_.places()[place];
    const std::string rank = pairing_.ranks ? pairing_.ranks->rank_of(outcome.finding) : "";
    if (!rank.empty()) outcome.finding.rule = rank + "; " + outcome.finding.rule;
  }
  return outcome;
}

// The base's numbers take the place of the mode's, so that the next op reads equal inputs and is
// compared by itself.
void ModeComparer::substitute(size_t place, const Record& record, const Group& group) const {
  for (size_t i = group.first; i < group.first + group.count; ++i) {
    const TensorView want = base_.find(place, {group.base, record.rows[i].position});
    const TensorView got = record.tensor.slice(i, 1);
    if (!want.empty() && want.shape == got.shape && want.dtype == got.dtype)
      std::memcpy(got.data, want.data, want.bytes());
  }
}

void ModeComparer::record(const Record& record) {
  const size_t place = index_of(ledger_.places(), {record.point, record.layer});
  if (place == ledger_.places().size()) return;
  for (const Group& group : groups_of(record.rows)) {
    NodeOutcome outcome = compare(place, record, group);
    entered_.insert({place, group.request});
    const std::pair wrong_read{record.layer, group.request};
    if (const auto cause = wrong_reads_.find(wrong_read); record.point->op == OpKind::attention &&
                                                          cause != wrong_reads_.end() &&
                                                          outcome.verdict == Verdict::introduced) {
      // Its inputs were not equal.
      outcome.verdict = Verdict::propagated;
      outcome.ancestor = cause->second;
    }
    const int finding = ledger_.enter(outcome);
    if (record.point->is_cache() && finding >= 0) wrong_reads_[wrong_read] = finding;
    substitute(place, record, group);
  }
}

// Nodes that the mode did not show. A tensor that is not shown is no clean one, so each of its
// nodes is entered as structural.
void ModeComparer::end() {
  std::vector<Row> all, with_logits;
  for (const PassRow& r : pass_.rows) all.push_back(r.row);
  for (int32_t i : pass_.logit_rows) with_logits.push_back(all[i]);
  for (size_t place = 0; place < ledger_.places().size(); ++place) {
    const bool logits = ledger_.places()[place].point->is_of_logits();
    for (const Group& group : groups_of(logits ? with_logits : all)) {
      if (entered_.contains({place, group.request})) continue;
      NodeOutcome outcome;
      outcome.place = static_cast<int>(place);
      outcome.pass = pass_.pass;
      outcome.request = group.request;
      outcome.verdict = Verdict::structural;
      outcome.finding.rule = fmt::format("{} does not show the tensor", pairing_.mode);
      ledger_.enter(outcome);
    }
  }
}

}  // namespace lockstep
