#include "src/judge/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/dtype.h"
#include "probes/digest.h"

namespace lockstep {
namespace {

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

void Meter::Slice::add(double unit) {
  squares += unit;
  ++count;
}

int64_t Meter::Slice::degrees() const {
  return Moments{.elements = count, .pairs = pairs}.degrees();
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

void Meter::exclude(const Element& e, NonFinite kind) {
  if (kind == NonFinite::introduced) note_wrong(e);
  ++measure_.excluded;
  if (kind > measure_.nonfinite) {
    measure_.nonfinite = kind;
    measure_.nonfinite_count = 0;
    measure_.nonfinite_at = e;
  }
  if (kind == measure_.nonfinite) ++measure_.nonfinite_count;
}

void Meter::note_wrong(const Element& e) {
  if (measure_.wrong.empty() || measure_.wrong.back().row != rows_added_)
    measure_.wrong.push_back({rows_added_, std::vector<bool>(static_cast<size_t>(row_size_))});
  measure_.wrong.back().elements[static_cast<size_t>(e.offset)] = true;
}

void Meter::compare(const Stored& stored, double limit) {
  const Element& e = stored.element;
  const double eta = e.got - e.want, half = stored.spacing / 2;
  if (limit > half)
    measure_.inner = std::max(measure_.inner, (std::fabs(eta) - half) / (limit - half));
  measure_.sum_squares += eta * eta;
  if (!within(e.budgets, 1)) ++measure_.over;
  const bool exact = node_class_ == NodeClass::exact;
  if (exact ? stored.different : !within(e.budgets, 1)) note_wrong(e);
  const bool candidate = stored.different || !exact;
  if (!candidate || (any_worst_ && !(e.budgets > measure_.worst.budgets))) return;
  measure_.worst = e;
  any_worst_ = true;
}

void Meter::add(int64_t position, const RowNumbers& row) {
  Moments sum{.gain = row.gain, .misrounds = row.misrounds};
  units_.assign(row.got.size(), -1);
  for (size_t i = 0; i < row.got.size(); ++i) {
    const Stored element = stored(position, static_cast<int64_t>(i), row);
    ++measure_.elements;
    const NonFinite kind = kind_of(element, row.limit[i]);
    // Saturation is another number than Inf, and as right.
    if (element.different && kind != NonFinite::expected) ++measure_.different;
    if (kind != NonFinite::none) {
      exclude(element.element, kind);
      continue;
    }
    compare(element, row.limit[i]);
    const double variance = row.variance[i], eta = row.got[i] - row.want[i];
    units_[i] = in_budgets(eta * eta, variance);
    ++sum.elements;
    sum.squares += units_[i];
    if (element.different) ++sum.misrounded;
    sum.may_misround += std::clamp(row.limit[i] / element.spacing - 0.5, 0.0, 1.0);
    if (!std::isfinite(units_[i])) continue;
    const double delta = row.got[i] - element.rounded, term = delta * row.want[i] / variance;
    if (!std::isfinite(delta)) continue;  // finite where an overflow was due: T1 says so
    sum.offset += delta / std::sqrt(variance);
    sum.cross += term;
    sum.cross_scatter += term * term;
    sum.power += row.want[i] * row.want[i] / variance;
  }
  ++rows_added_;
  if (node_class_ == NodeClass::exact) return;
  if (!row.shared.empty())
    for (size_t head = 0; head < heads_.size(); ++head) sum.pairs += pairs_of(head, row);
  sum.end_row();
  const uint64_t hash = hash_of_row(row);
  if (moments_.add(hash, sum)) add_slices(position, row, sum);
  if (pool_) pool_->add(hash, sum);
}

void Meter::add_slices(int64_t position, const RowNumbers& row, const Moments& sum) {
  for (size_t i = 0; i < units_.size(); ++i) {
    if (units_[i] < 0) continue;
    if (head_size_ > 0) heads_[i / static_cast<size_t>(head_size_)].add(units_[i]);
    if (!columns_.empty()) columns_[i].add(units_[i]);
  }
  if (!row.shared.empty())
    for (size_t head = 0; head < heads_.size(); ++head) heads_[head].pairs += pairs_of(head, row);
  const auto add_row = [&](Slice& slice) {
    slice.squares += sum.squares;
    slice.count += sum.elements;
    slice.pairs += sum.pairs;
  };
  add_row(rows_[position]);
  if (page_size_ > 0) add_row(pages_[position / page_size_]);
}

// The elements of a head that share a part of their variance count as fewer.
double Meter::pairs_of(size_t head, const RowNumbers& row) const {
  double sum = 0, squares = 0;
  const auto size = static_cast<size_t>(head_size_);
  for (size_t i = head * size; i < (head + 1) * size; ++i) {
    const double f = row.variance[i] > 0 ? row.shared[i] / row.variance[i] : 0;
    sum += f;
    squares += f * f;
  }
  return std::max(0.0, sum * sum - squares);
}

Statistic Meter::worst_slice() const {
  struct Named {
    const char* axis;
    int64_t key;
    const Slice* slice;
  };
  std::vector<Named> slices;
  const auto take = [&](const char* axis, int64_t key, const Slice& slice) {
    // A slice that is the whole node is T2 again.
    if (slice.count >= kLeastSlice && slice.count < moments_.sum().elements)
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
    const double value = std::sqrt(slice->squares / static_cast<double>(slice->count));
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
