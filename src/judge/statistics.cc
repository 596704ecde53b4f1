#include "src/judge/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/dtype.h"
#include "probes/digest.h"

namespace lockstep {
namespace {

// Columns that are worth a thread.
constexpr int64_t kGrain = 64;

// A budget that is not a positive number can vouch for nothing.
double in_budgets(double difference, double limit) {
  if (!(limit > 0) || !std::isfinite(limit)) return std::numeric_limits<double>::infinity();
  return std::fabs(difference) / limit;
}

// Of what the row came to. The exact result as fp32: what a row holds besides does not depend on
// which rows it was computed with, the last bits of fp64 do.
uint64_t hash_of_row(const RowNumbers& row) {
  std::vector<float> want(row.want.begin(), row.want.end());
  return hash_of(want.data(), want.size() * sizeof(float)) * 3 +
         hash_of(row.got.data(), row.got.size_bytes());
}

}  // namespace

Meter::Meter(DType dtype, NodeClass node_class, const Shape& row_shape, int64_t rows,
             int64_t page_size, DistinctMoments* pool)
    : dtype_(dtype),
      node_class_(node_class),
      page_size_(page_size),
      row_size_(row_shape.count()),
      head_size_(row_shape.rank() == 2 ? row_shape[1] : 0),
      largest_(format_of(dtype).max),
      pool_(pool) {
  if (head_size_ > 0) heads_.resize(static_cast<size_t>(row_shape[0]));
  if (rows >= kLeastSlice) columns_.resize(static_cast<size_t>(row_shape.count()));
}

Meter::Stored Meter::stored(int64_t position, int64_t offset, const RowNumbers& row) const {
  const auto i = static_cast<size_t>(offset);
  const double got = row.got[i], want = row.want[i];
  const Element element{position, offset, want, got, in_budgets(got - want, row.limit[i])};
  const double rounded = round_to(want, dtype_);
  bool different = got != rounded && !(std::isnan(got) && std::isnan(rounded));
  if (node_class_ == NodeClass::exact)
    different = different || std::signbit(got) != std::signbit(rounded);
  return {element, rounded, ulp(want, dtype_), different};
}

NonFinite Meter::kind_of(const Stored& stored, double limit) const {
  const Element& e = stored.element;
  if (std::isfinite(e.want)) {
    if (std::fabs(e.got) < largest_) return NonFinite::none;
    // Rounding up across the border needs no more than what the op may be off before it rounds.
    const double inner = std::max(0.0, limit - stored.spacing / 2);
    const bool overflows = std::isinf(round_to(std::fabs(e.want) + inner, dtype_));
    const bool saturated = std::isinf(stored.rounded) && std::fabs(e.got) == largest_;
    const bool same_sign = std::signbit(e.got) == std::signbit(e.want);
    if (overflows && same_sign && (std::isinf(e.got) || saturated)) return NonFinite::expected;
    return std::isfinite(e.got) ? NonFinite::none : NonFinite::introduced;
  }
  const bool as_wanted = !std::isfinite(e.got) || e.got == std::copysign(largest_, e.want);
  return as_wanted ? NonFinite::propagated : NonFinite::introduced;
}

void Meter::exclude(Row& measured, const Element& e, NonFinite kind) const {
  Measure& measure = measured.measure;
  if (kind == NonFinite::introduced) note_wrong(measured, e);
  ++measure.excluded;
  if (kind > measure.nonfinite) {
    measure.nonfinite = kind;
    measure.nonfinite_count = 0;
    measure.nonfinite_at = e;
  }
  if (kind == measure.nonfinite) ++measure.nonfinite_count;
}

void Meter::note_wrong(Row& measured, const Element& e) const {
  std::vector<WrongRow>& wrong = measured.measure.wrong;
  if (wrong.empty()) wrong.push_back({0, std::vector<bool>(static_cast<size_t>(row_size_))});
  wrong.back().elements[static_cast<size_t>(e.offset)] = true;
}

void Meter::compare(Row& measured, const Stored& stored, double limit) const {
  Measure& measure = measured.measure;
  const Element& e = stored.element;
  const double eta = e.got - e.want, half = stored.spacing / 2;
  if (limit > half)
    measure.inner = std::max(measure.inner, (std::fabs(eta) - half) / (limit - half));
  measure.sum_squares += eta * eta;
  if (!within(e.budgets, 1)) ++measure.over;
  const bool exact = node_class_ == NodeClass::exact;
  if (exact ? stored.different : !within(e.budgets, 1)) note_wrong(measured, e);
  const bool candidate = stored.different || !exact;
  if (!candidate || (measured.any_worst && !(e.budgets > measure.worst.budgets))) return;
  measure.worst = e;
  measured.any_worst = true;
}

Meter::Row Meter::measure(int64_t position, const RowNumbers& row) const {
  Row measured{.position = position};
  Moments& sum = measured.sum;
  sum.gain = row.gain, sum.misrounds = row.misrounds;
  measured.units.assign(row.got.size(), -1);
  measured.due.assign(row.got.size(), 0);
  for (size_t i = 0; i < row.got.size(); ++i) {
    const Stored element = stored(position, static_cast<int64_t>(i), row);
    ++measured.measure.elements;
    const NonFinite kind = kind_of(element, row.limit[i]);
    // Saturation is another number than Inf, and as right.
    if (element.different && kind != NonFinite::expected) ++measured.measure.different;
    if (kind != NonFinite::none) {
      exclude(measured, element.element, kind);
      continue;
    }
    compare(measured, element, row.limit[i]);
    const double variance = row.variance[i], eta = row.got[i] - row.want[i];
    const double unit = measured.units[i] = in_budgets(eta * eta, variance);
    ++sum.elements;
    sum.squares += unit;
    if (element.different) ++sum.misrounded;
    sum.may_misround += std::clamp(row.limit[i] / element.spacing - 0.5, 0.0, 1.0);
    if (!std::isfinite(unit)) continue;
    const double delta = row.got[i] - element.rounded;
    if (!std::isfinite(delta)) continue;  // finite where an overflow was due: T1 says so
    const double due = element.rounded - row.want[i];
    measured.due[i] = (due * due - element.spacing * element.spacing / 12) / variance;
    sum.due += measured.due[i];
    sum.power += row.want[i] * row.want[i] / variance;
    if (delta == 0) continue;  // as of most
    const double term = delta * row.want[i] / variance;
    sum.offset += delta / std::sqrt(variance);
    sum.cross += term;
    sum.cross_scatter += term * term;
  }
  if (node_class_ == NodeClass::exact) return measured;
  for (size_t head = 0; head < heads_.size(); ++head)
    sum.pairs += measured.heads.emplace_back(head_of(head, measured, row)).pairs;
  sum.end_row();
  measured.hash = hash_of_row(row);
  return measured;
}

void Meter::add(int64_t position, const RowNumbers& row) {
  Row measured = measure(position, row);
  add(std::span(&measured, 1), nullptr);
}

void Meter::add(std::span<Row> rows, ThreadPool* threads) {
  std::vector<const Row*> distinct;
  for (Row& row : rows) {
    merge(row);
    ++rows_added_;
    if (node_class_ == NodeClass::exact) continue;
    if (pool_) pool_->add(row.hash, row.sum);
    if (!moments_.add(row.hash, row.sum)) continue;
    add_slices(row);
    distinct.push_back(&row);
  }
  add_columns(distinct, threads);
}

void Meter::merge(Row& row) {
  Measure& to = measure_;
  const Measure& from = row.measure;
  to.elements += from.elements;
  to.excluded += from.excluded;
  to.different += from.different;
  to.over += from.over;
  to.sum_squares += from.sum_squares;
  to.inner = std::max(to.inner, from.inner);
  for (WrongRow& wrong : row.measure.wrong)
    to.wrong.push_back({rows_added_, std::move(wrong.elements)});
  if (row.any_worst && (!any_worst_ || from.worst.budgets > to.worst.budgets)) {
    to.worst = from.worst;
    any_worst_ = true;
  }
  if (from.nonfinite > to.nonfinite) {
    to.nonfinite = from.nonfinite;
    to.nonfinite_count = from.nonfinite_count;
    to.nonfinite_at = from.nonfinite_at;
  } else if (from.nonfinite == to.nonfinite) {
    to.nonfinite_count += from.nonfinite_count;
  }
}

// What can be summed up within a row, `measure` has.
void Meter::add_slices(const Row& row) {
  for (size_t head = 0; head < row.heads.size(); ++head) heads_[head].add(row.heads[head]);
  rows_[row.position].add(row.sum);
  if (page_size_ > 0) pages_[row.position / page_size_].add(row.sum);
}

// Each column by one thread, its rows in their order.
void Meter::add_columns(std::span<const Row* const> rows, ThreadPool* threads) {
  parallel_for(threads, std::ssize(columns_), kGrain, [&](int64_t begin, int64_t end) {
    for (const Row* row : rows)
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
        if (row->units[i] >= 0)
          columns_[i].add({.elements = 1, .squares = row->units[i], .due = row->due[i]});
  });
}

// The elements of a head that share a part of their variance count as fewer.
Scatter Meter::head_of(size_t head, const Row& measured, const RowNumbers& row) const {
  Scatter scatter;
  double sum = 0, squares = 0;
  const auto size = static_cast<size_t>(head_size_);
  for (size_t i = head * size; i < (head + 1) * size; ++i) {
    if (measured.units[i] >= 0)
      scatter.add({.elements = 1, .squares = measured.units[i], .due = measured.due[i]});
    if (row.shared.empty()) continue;
    const double f = row.variance[i] > 0 ? row.shared[i] / row.variance[i] : 0;
    sum += f;
    squares += f * f;
  }
  scatter.pairs = std::max(0.0, sum * sum - squares);
  return scatter;
}

Statistic Meter::worst_slice() const {
  struct Named {
    const char* axis;
    int64_t key;
    const Scatter* slice;
  };
  std::vector<Named> slices;
  const auto take = [&](const char* axis, int64_t key, const Scatter& slice) {
    // A slice that is the whole node is T2 again.
    if (slice.elements >= kLeastSlice && slice.elements < moments_.sum().elements)
      slices.push_back({axis, key, &slice});
  };
  for (const auto& [position, slice] : rows_) take("position", position, slice);
  for (const auto& [page, slice] : pages_) take("page", page, slice);
  for (size_t h = 0; h < heads_.size(); ++h) take("head", static_cast<int64_t>(h), heads_[h]);
  for (size_t c = 0; c < columns_.size(); ++c) take("column", static_cast<int64_t>(c), columns_[c]);

  Statistic worst{"T4", 0, 1, ""};
  const double tail = kFalseAlarm / std::max(1.0, static_cast<double>(slices.size()));
  std::map<int64_t, double> limits;  // slices come in few sizes
  for (const auto& [axis, key, slice] : slices) {
    double& limit = limits[slice->degrees()];
    if (limit == 0) limit = rms_limit(slice->degrees(), tail);
    const double value = slice->rms();
    if (value / limit > worst.value / worst.limit)
      worst = {"T4", value, limit, fmt::format("{} {}", axis, key)};
  }
  return worst;
}

Measure Meter::finish() const {
  Measure measure = measure_;
  if (node_class_ == NodeClass::exact) {
    measure.statistics.push_back(
        {"T0", static_cast<double>(measure.different), 0,
         fmt::format("{} of {} elements have other bits", measure.different, measure.elements)});
    return measure;
  }
  measure.statistics.push_back(
      {"T1", measure.worst.budgets, 1,
       fmt::format("{} of {} elements over their budget", measure.over, measure.elements)});
  for (Statistic& statistic : moments_.sum().statistics(dtype_))
    measure.statistics.push_back(std::move(statistic));
  if (measure.statistics.size() > 1)  // T4 tells where, so it goes before what T3 and T5 say
    measure.statistics.insert(measure.statistics.begin() + 2, worst_slice());
  return measure;
}

}  // namespace lockstep
