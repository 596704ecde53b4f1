// A bucket holds the largest error of neighbouring positions, or of neighbours on a row's first
// axis, in budgets. When positions outgrow their buckets each two neighbours become one, so that a
// profile has a bounded size whatever the length of a request; widths are powers of two, so that
// profiles of two requests can be joined.
#include "src/stats/error_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace lockstep {
namespace {

// The comparison is false for NaN, which stands for a bucket without any.
void keep_larger(double& largest, double value) {
  if (!(largest >= value)) largest = value;  // also where nothing was compared so far
}

// The two are nothing, or numbers.
void keep_larger_of(double& largest, double value) {
  if (!std::isnan(value)) keep_larger(largest, value);
}

// Makes one bucket of each two neighbours. stride: values of a bucket.
void halve(std::vector<double>& values, size_t stride) {
  const size_t buckets = values.size() / stride, half = (buckets + 1) / 2;
  for (size_t to = 0; to < half; ++to)
    for (size_t i = 0; i < stride; ++i) {
      values[to * stride + i] = values[2 * to * stride + i];
      if (2 * to + 1 < buckets)
        keep_larger_of(values[to * stride + i], values[(2 * to + 1) * stride + i]);
    }
  values.resize(half * stride);
}

std::vector<int64_t> index_of(int64_t position, int64_t offset, const std::vector<int64_t>& shape) {
  std::vector<int64_t> index(shape.size() + 1);
  for (size_t axis = shape.size(); axis > 0; offset /= shape[--axis])
    index[axis] = offset % shape[axis - 1];
  index[0] = position;
  return index;
}

}  // namespace

ErrorProfile::ErrorProfile(std::vector<int64_t> row_shape_)
    : row_shape(std::move(row_shape_)), histogram(kBins) {
  const int64_t extent = row_shape.at(0);
  // Columns never widen: their number is known from the shape.
  columns.width = std::max<int64_t>(1, (extent + kMostBuckets - 1) / kMostBuckets);
  columns.largest.resize((extent + columns.width - 1) / columns.width, kNothingCompared);
}

int ErrorProfile::bin_of(double budgets) {
  int exponent = 0;
  const double fraction = std::frexp(budgets, &exponent);  // budgets = fraction 2^exponent
  if (!(budgets > 0)) return 0;
  if (fraction == 0.5) --exponent;  // powers of two are the largest of their bins
  return std::clamp(exponent - kFirstExponent, 0, kBins - 1);
}

void ErrorProfile::widen() {
  halve(positions.largest, 1);
  halve(map, columns.largest.size());
  positions.width *= 2;
}

void ErrorProfile::make_room_for(int64_t position) {
  while (position / positions.width >= kMostBuckets) widen();
  const size_t buckets = (position / positions.width) + 1;
  if (buckets <= positions.largest.size()) return;
  positions.largest.resize(buckets, kNothingCompared);
  map.resize(buckets * columns.largest.size(), kNothingCompared);
}

void ErrorProfile::keep(const ErrorProfile::WorstElement& element) {
  if (worst.size() == kMostWorst && !(element.budgets > worst.back().budgets)) return;
  const auto before = std::ranges::find_if(worst, [&](const ErrorProfile::WorstElement& other) {
    return element.budgets > other.budgets;
  });
  worst.insert(before, element);
  if (worst.size() > kMostWorst) worst.pop_back();
}

void ErrorProfile::add(int64_t position, int64_t offset, double want, double got, double budgets) {
  int64_t of_column = columns.width;  // elements of a row in one bucket
  for (size_t axis = 1; axis < row_shape.size(); ++axis) of_column *= row_shape[axis];
  make_room_for(position);
  const size_t row = position / positions.width;
  const size_t column = offset / of_column;
  keep_larger(positions.largest[row], budgets);
  keep_larger(columns.largest[column], budgets);
  keep_larger(map[row * columns.largest.size() + column], budgets);
  ++elements;
  if (std::isfinite(budgets))
    ++histogram[bin_of(budgets)];
  else
    ++nonfinite;
  if (worst.size() < kMostWorst || budgets > worst.back().budgets)
    keep({.index = index_of(position, offset, row_shape),
          .want = want,
          .got = got,
          .budgets = budgets});
}

void ErrorProfile::add(const ErrorProfile& other) {
  if (other.elements == 0) return;
  if (elements == 0) {
    *this = other;
    return;
  }
  // All widths are powers of two, so that a wide bucket holds whole narrow ones.
  while (positions.width < other.positions.width) widen();
  // Widens this one too, where the other one's last bucket lies beyond its 64.
  make_room_for((std::ssize(other.positions.largest) - 1) * other.positions.width);
  ErrorProfile as_wide = other;
  while (as_wide.positions.width < positions.width) as_wide.widen();
  const auto join = [](std::vector<double>& to, const std::vector<double>& from) {
    for (size_t i = 0; i < from.size(); ++i) keep_larger_of(to.at(i), from[i]);
  };
  join(positions.largest, as_wide.positions.largest);
  join(columns.largest, as_wide.columns.largest);
  join(map, as_wide.map);
  rows += other.rows;
  elements += other.elements;
  nonfinite += other.nonfinite;
  for (size_t i = 0; i < histogram.size(); ++i) histogram[i] += other.histogram[i];
  for (const ErrorProfile::WorstElement& element : other.worst) keep(element);
}

void ErrorProfile::shorten_map() {
  for (double& largest : map)
    if (std::isfinite(largest)) largest = std::stod(fmt::format("{:.4g}", largest));
}

void ErrorProfile::name_node(int32_t pass, int32_t request) {
  for (ErrorProfile::WorstElement& element : worst) element.pass = pass, element.request = request;
}

}  // namespace lockstep
