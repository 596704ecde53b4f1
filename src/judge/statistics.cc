#include "src/judge/statistics.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "kernels/dtype.h"

namespace lockstep {
namespace {

// z with P(standard normal > z) = tail, by Newton steps on the logarithm of the tail.
double normal_quantile(double tail) {
  double z = std::sqrt(-2 * std::log(tail));
  for (int i = 0; i < 30; ++i) {
    const double upper = 0.5 * std::erfc(z / std::sqrt(2.0));
    const double density = std::exp(-0.5 * z * z) / std::sqrt(2 * M_PI);
    if (!(density > 0) || !(upper > 0)) {
      z *= 0.9;  // the start lies beyond what fp64 can show
      continue;
    }
    z += upper / density * std::log(upper / tail);
  }
  return z;
}

// A budget that is not a positive number can vouch for nothing.
double in_budgets(double difference, double limit) {
  if (!(limit > 0) || !std::isfinite(limit)) return std::numeric_limits<double>::infinity();
  return std::fabs(difference) / limit;
}

}  // namespace

double chi_square_quantile(int64_t n, double tail) {
  const double k = 2.0 / (9.0 * static_cast<double>(n));
  const double cube_root = 1 - k + normal_quantile(tail) * std::sqrt(k);
  return static_cast<double>(n) * cube_root * cube_root * cube_root;
}

double rms_limit(int64_t n, double tail) {
  return std::max(1.10, 1.05 * std::sqrt(chi_square_quantile(n, tail) / static_cast<double>(n)));
}

Meter::Meter(DType dtype, NodeClass node_class, const Shape& row_shape, int64_t rows,
             int64_t page_size)
    : dtype_(dtype),
      node_class_(node_class),
      page_size_(page_size),
      head_size_(row_shape.rank() == 2 ? row_shape[1] : 0),
      largest_(format_of(dtype).max) {
  if (head_size_ > 0) heads_.resize(static_cast<size_t>(row_shape[0]));
  if (rows >= kLeastSlice) columns_.resize(static_cast<size_t>(row_shape.count()));
}

void Meter::Slice::add(const Slice& other) {
  sum += other.sum;
  count += other.count;
  pairs += other.pairs;
}

int64_t Meter::Slice::degrees() const {
  const auto n = static_cast<double>(count);
  return std::max<int64_t>(1, static_cast<int64_t>(n * n / (n + pairs)));
}

bool Meter::differs(double got, double want) const {
  const double rounded = round_to(want, dtype_);
  if (got != rounded) return !(std::isnan(got) && std::isnan(rounded));
  return node_class_ == NodeClass::exact && std::signbit(got) != std::signbit(rounded);
}

bool Meter::numeric(const Element& e, double limit) {
  const double rounded = round_to(e.want, dtype_);
  NonFinite kind = NonFinite::introduced;
  if (std::isfinite(e.want)) {
    // Rounding up across the border needs no more than what the op may be off before it rounds.
    const double inner = std::max(0.0, limit - ulp(e.want, dtype_) / 2);
    const bool overflows = std::isinf(round_to(std::fabs(e.want) + inner, dtype_));
    const bool saturated = std::isinf(rounded) && std::fabs(e.got) == largest_;
    const bool same_sign = std::signbit(e.got) == std::signbit(e.want);
    if (overflows && same_sign && (std::isinf(e.got) || saturated))
      kind = NonFinite::expected;
    else if (std::isfinite(e.got))
      return true;
  } else if (!std::isfinite(e.got) || (e.got == std::copysign(largest_, e.want))) {
    kind = NonFinite::propagated;
  }
  ++measure_.excluded;
  if (kind > measure_.nonfinite) {
    measure_.nonfinite = kind;
    measure_.nonfinite_count = 0;
    measure_.nonfinite_at = e;
  }
  if (kind == measure_.nonfinite) ++measure_.nonfinite_count;
  return false;
}

void Meter::add(int64_t position, const RowNumbers& row) {
  Slice row_slice;
  const int64_t size = static_cast<int64_t>(row.got.size());
  for (int64_t offset = 0; offset < size; ++offset) {
    const auto i = static_cast<size_t>(offset);
    const double eta = row.got[i] - row.want[i];
    const Element element{position, offset, row.want[i], row.got[i], in_budgets(eta, row.limit[i])};
    ++measure_.elements;
    const bool different = differs(element.got, element.want);
    if (different) ++measure_.different;
    if (!numeric(element, row.limit[i])) continue;
    measure_.sum_squares += eta * eta;
    if (!within(element.budgets, 1)) ++measure_.over;
    const bool candidate = different || node_class_ != NodeClass::exact;
    if (candidate && (!any_worst_ || element.budgets > measure_.worst.budgets)) {
      measure_.worst = element;
      any_worst_ = true;
    }
    const double unit = in_budgets(eta * eta, row.variance[i]);
    row_slice.add({unit, 1, 0});
    if (head_size_ > 0) heads_[static_cast<size_t>(offset / head_size_)].add({unit, 1, 0});
    if (!columns_.empty()) columns_[i].add({unit, 1, 0});
  }
  add_pairs(row, row_slice);
  rows_[position].add(row_slice);
  if (page_size_ > 0) pages_[position / page_size_].add(row_slice);
}

// The elements of a head that share a part of their variance count as fewer.
void Meter::add_pairs(const RowNumbers& row, Slice& row_slice) {
  if (row.shared.empty() || head_size_ == 0) return;
  for (size_t h = 0; h < heads_.size(); ++h) {
    double sum = 0, squares = 0;
    for (size_t i = h * static_cast<size_t>(head_size_);
         i < (h + 1) * static_cast<size_t>(head_size_); ++i) {
      const double f = row.variance[i] > 0 ? row.shared[i] / row.variance[i] : 0;
      sum += f;
      squares += f * f;
    }
    const double pairs = std::max(0.0, sum * sum - squares);
    heads_[h].pairs += pairs;
    row_slice.pairs += pairs;
  }
}

Statistic Meter::worst_slice(const Slice& all) const {
  struct Named {
    const char* axis;
    int64_t key;
    const Slice* slice;
  };
  std::vector<Named> slices;
  const auto take = [&](const char* axis, int64_t key, const Slice& slice) {
    // A slice that is the whole node is T2 again.
    if (slice.count >= kLeastSlice && slice.count < all.count)
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
    const double value = std::sqrt(slice->sum / static_cast<double>(slice->count));
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
  Slice all;
  for (const auto& [position, slice] : rows_) all.add(slice);
  if (all.count < kLeastElements) return measure;
  measure.statistics.push_back({"T2", std::sqrt(all.sum / static_cast<double>(all.count)),
                                rms_limit(all.degrees(), kFalseAlarm), "the whole node"});
  measure.statistics.push_back(worst_slice(all));
  return measure;
}

}  // namespace lockstep
