// A row is looked at twice: for its variance, by which it is weighed, and for its parts.
#include "src/stats/row_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

// Variances in units of a squared spacing: of numbers that lie anywhere, and on the coarsest
// lattice.
constexpr double kAnywhere = 1.0 / 12, kOnLattice = 1.0 / 8;

double square(double x) { return x * x; }

// The numbers n that a kernel stores as that element: an interval.
struct Normed {
  double middle = 0, length = 0;
};

// Those of one rounding, or, where n is rounded before it is weighed, of all the numbers that go to
// what was stored once they are weighed: of products of two stored numbers the rounding has a mean,
// as for weights just over 1, so that it is looked at itself. None is (another kernel's): of one.
Normed normed_of(const NormedRow& row, size_t i) {
  const double w = row.weight[i], y = row.got[i];
  const double largest = std::max(std::fabs(w * row.normed[i]), std::fabs(y));
  const Normed once = {y / w, ulp(largest, row.dtype) / std::fabs(w)};
  if (!row.rounds_inside) return once;
  const double nearest = round_to(y / w, row.dtype), spacing = ulp(nearest, row.dtype);
  int first = 3, last = -3;
  for (int step = -2; step <= 2; ++step)
    if (round_to((nearest + step * spacing) * w, row.dtype) == y)
      first = std::min(first, step), last = std::max(last, step);
  if (first > last) return once;
  return {nearest + spacing * (first + last) / 2, spacing * (last - first + 1)};
}

// The most that chance makes of a sum of errors, in standard deviations.
double most_deviations(double tail) { return std::sqrt(2 * std::log(2 / tail)); }

double deviations(const ScaleSums& sums) {
  const double over = std::max(0.0, std::fabs(sums.cross) - sums.allowed);
  return over > 0 ? over / std::sqrt(sums.scatter) : 0;
}

bool is_plain(const NormedRow& row) {
  const double largest = format_of(row.dtype).max;
  for (size_t i = 0; i < row.got.size(); ++i) {
    const double want = row.weight[i] * row.normed[i];
    if (!(std::fabs(want) <= largest) || !std::isfinite(row.got[i])) return false;
  }
  return true;
}

// Whether the first rounding after the sum is of the sum itself, times a power of two, or nearly.
bool keeps_lattice(const NormedRow& row, size_t i) {
  if (row.stored[i] == 0) return false;
  const double w = row.rounds_inside ? 1 : row.weight[i];
  const double factor = std::fabs(w * row.normed[i] / row.stored[i]);
  const double apart = std::fabs(factor / std::exp2(std::round(std::log2(factor))) - 1);
  return apart < unit_roundoff(row.dtype);
}

// The sums of a row that its elements are weighed by.
struct Squares {
  double all = 0;    // sum n^2
  double said = 0;   // the same of elements with a weight
  double moved = 0;  // sum h^2 s^2
  double kept = 0;   // of sum n^2 g, what lattices may make of it
};

// Half a spacing of the input, as a share of it.
double half_step(const NormedRow& row, size_t i) {
  return row.stored[i] == 0 ? 0
                            : ulp(row.stored[i], row.stored_dtype) / (2 * std::fabs(row.stored[i]));
}

Squares squares_of(const NormedRow& row) {
  Squares squares;
  for (size_t i = 0; i < row.got.size(); ++i) {
    const double square_of_n = square(row.normed[i]);
    squares.all += square_of_n;
    squares.moved += square_of_n * square(half_step(row, i));
    const double n = row.normed[i], w = row.weight[i];
    if (w == 0) continue;
    squares.said += square_of_n;
    if (!keeps_lattice(row, i)) continue;
    const double spacing = row.rounds_inside ? ulp(n, row.dtype) : ulp(w * n, row.dtype) / w;
    squares.kept += std::fabs(n * spacing) / 4;
  }
  return squares;
}

// The variance of sum n^2 g.
double variance_of(const NormedRow& row, const Squares& squares) {
  const double mean = squares.said / static_cast<double>(row.got.size());
  double variance = 0;
  for (size_t i = 0; i < row.got.size(); ++i) {
    const double n = row.normed[i], w = row.weight[i];
    const double of_input = square(n) * (w == 0 ? mean : mean - 1) * half_step(row, i);
    // A lattice of half steps: twice that is a spacing.
    variance += 4 * kOnLattice * square(of_input);
    if (w == 0) continue;
    variance += kAnywhere * square(n * normed_of(row, i).length);
  }
  return variance;
}

}  // namespace

void ScaleSums::add(const ScaleSums& other) {
  rows += other.rows;
  cross += other.cross;
  power += other.power;
  scatter += other.scatter;
  allowed += other.allowed;
}

Statistic ScaleSums::statistic(double tail) const {
  const double gain = power > 0 ? cross / power : 0, z = deviations(*this);
  return {StatisticKind::gain, z / most_deviations(tail), 1,
          fmt::format("{} {:.3g} of itself too {}, {:.3g} standard errors more than any rounding "
                      "of what it reads explains",
                      rows == 1 ? "a row is" : "everything is", std::fabs(gain),
                      gain > 0 ? "large" : "small", z)};
}

void RowScales::add(const NormedRow& row) {
  if (!is_plain(row)) return;
  const Squares squares = squares_of(row);
  const double variance = variance_of(row, squares);
  if (!(squares.said > 0) || !(variance > 0) || !std::isfinite(variance)) return;
  const double scale = squares.said / variance;
  columns_.resize(std::max(columns_.size(), row.got.size()));
  ScaleSums sums{.rows = 1, .power = squares.said * scale, .scatter = squares.said * scale};
  for (size_t i = 0; i < row.got.size(); ++i) {
    const double n = row.normed[i];
    if (row.weight[i] == 0) continue;
    const double part = scale * n * (normed_of(row, i).middle - n);
    sums.cross += part;
    columns_[i] += part;
    squares_ += square(part);
  }
  sums.allowed = sums.power * (row.gain + squares.moved / (2 * squares.all)) + scale * squares.kept;
  sums_.add(sums);
  if (worst_.rows == 0 || deviations(sums) > deviations(worst_)) worst_ = sums;
}

ScaleSums RowScales::sums() const {
  ScaleSums sums = sums_;
  double of_columns = 0;
  for (const double column : columns_) of_columns += square(column);
  if (squares_ > 0) sums.scatter *= std::max(1.0, of_columns / squares_);
  return sums;
}

std::vector<Statistic> RowScales::statistics(double tail) const {
  if (sums_.rows == 0) return {};
  // The two questions have half of the risk each, and each row its share of the second half.
  Statistic all = sums().statistic(tail / 2);
  Statistic row = worst_.statistic(tail / 2 / static_cast<double>(sums_.rows));
  return {all.value >= row.value ? std::move(all) : std::move(row)};
}

}  // namespace lockstep
