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

// A lattice that is turned by nearly a ratio of two small whole numbers falls onto itself in parts,
// which makes more than chance does: of rows that are all turned so, three times as much was seen,
// and of rows that are turned as they come, at a width of 8192, just over the limit.
constexpr double kTurnedAsOne = 2;

// An element of a sum that was computed may be off by kMostOff of its standard deviations, and a
// row must say where kNearlyAll of it is. What samples say of the squares of all errors is taken
// times kRough, at a quarter of their degrees of freedom, since they are few.
constexpr double kMostOff = 8, kNearlyAll = 0.9, kRough = 4, kSquaresTail = 1e-9;

double square(double x) { return x * x; }

// The numbers n that a kernel stores as one number: an interval.
struct Normed {
  double middle = 0, length = 0;
};

// Whether what is stored says where n is: not of a weight of 0, nor of one so small that there are
// few numbers to store it by.
bool says_something(const NormedRow& row, size_t i) {
  constexpr double kLeastSteps = 32;
  const double want = std::fabs(row.weight[i] * row.normed[i]);
  return want > 0 && kLeastSteps * ulp(want, row.dtype) <= want;
}

// The number that is stored of an element whose exact one before the weight is n.
double stored_of(const NormedRow& row, size_t i, double n) {
  return round_to((row.rounds_inside ? round_to(n, row.dtype) : n) * row.weight[i], row.dtype);
}

// Those of one rounding, or, where n is rounded before it is weighed, of all the numbers that go to
// what was stored once they are weighed: of products of two stored numbers the rounding has a mean,
// as for weights just over 1, so that it is looked at itself. None is (another kernel's): of one.
Normed normed_of(const NormedRow& row, size_t i, double y) {
  const double w = row.weight[i];
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
  const double least = std::min(0.0, sums.exact) + std::min(0.0, sums.half_way);
  const double most = std::max(0.0, sums.exact) + std::max(0.0, sums.half_way);
  const double nearest = std::clamp(sums.cross, least, most);
  const double over = std::max(0.0, std::fabs(sums.cross - nearest) - sums.allowed);
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
  double scale = 0;  // s
  double all = 0;    // sum n^2
  double said = 0;   // the same of elements with a weight
  double moved = 0;  // sum h^2 s^2
  double kept = 0;   // of sum n^2 g, what lattices that are not turned may make of it
  // Whether all elements are rounded first after they were multiplied by one number.
  bool turn_as_one = true;
};

// The most that the squares of a computed sum's errors add up to.
double most_squares(const NormedRow& row) {
  const size_t size = row.got.size(), count = row.samples.size() / size;
  double sum = 0, of_squares = 0;
  for (size_t s = 0; s < count; ++s) {
    double squares = 0;
    for (size_t i = 0; i < size; ++i) squares += square(row.samples[s * size + i]);
    sum += squares, of_squares += square(squares);
  }
  if (!(sum > 0)) return 0;
  const double mean = sum / static_cast<double>(count);
  const double variance = of_squares / static_cast<double>(count) - square(mean);
  constexpr double kMany = 1e6;
  // Errors in one direction have one degree; of a variance of 0 there are as many as can be.
  const double degrees =
      variance > 0 ? std::clamp(2 * square(mean) / variance / kRough, 1.0, kMany) : kMany;
  const auto whole = static_cast<int64_t>(degrees);
  return kRough * mean * chi_square_quantile(whole, kSquaresTail) / static_cast<double>(whole);
}

// Half a spacing of the input, as a share of it.
double half_step(const NormedRow& row, size_t i) {
  return row.stored[i] == 0 ? 0
                            : ulp(row.stored[i], row.stored_dtype) / (2 * std::fabs(row.stored[i]));
}

bool is_computed(const NormedRow& row) { return !row.deviation.empty(); }

// The most that the input is off, in units of the row's size.
double most_off(const NormedRow& row, size_t i, double scale) {
  return is_computed(row) ? kMostOff * row.deviation[i] * scale
                          : std::fabs(row.normed[i]) * half_step(row, i);
}

Squares squares_of(const NormedRow& row) {
  Squares squares;
  double factor = 0, of_input = 0;
  for (size_t i = 0; i < row.got.size(); ++i) {
    squares.all += square(row.normed[i]);
    of_input += square(row.stored[i]);
  }
  squares.scale = std::sqrt(squares.all / of_input);
  for (size_t i = 0; i < row.got.size(); ++i) {
    const double square_of_n = square(row.normed[i]);
    if (!is_computed(row)) squares.moved += square(most_off(row, i, squares.scale));
    if (!says_something(row, i)) continue;
    const double n = row.normed[i], w = row.weight[i];
    squares.said += square_of_n;
    if (factor == 0) factor = std::fabs(w);
    squares.turn_as_one = squares.turn_as_one && (row.rounds_inside || std::fabs(w) == factor);
    if (!keeps_lattice(row, i)) continue;
    const double spacing = row.rounds_inside ? ulp(n, row.dtype) : ulp(w * n, row.dtype) / w;
    squares.kept += std::fabs(n * spacing) / 4;
  }
  if (is_computed(row)) squares.moved = square(squares.scale) * most_squares(row);
  return squares;
}

// The exact row before its weight of a sum that a kernel may have read exactly: of one that is
// computed, its rounded number.
double may_have_read(const NormedRow& row, size_t i) {
  const double x = row.stored[i], rounded = round_to(x, row.stored_dtype);
  const bool is_number = x != 0 && std::isfinite(rounded);
  return is_computed(row) && is_number ? row.normed[i] * rounded / x : row.normed[i];
}

// Whether a sum half way to a neighbour is stored so: of an even number.
bool may_be_half_way(const NormedRow& row, size_t i) {
  const double x = std::fabs(row.stored[i]);
  return x > 0 && std::fmod(x / ulp(x, row.stored_dtype), 2) == 0;
}

// How much of an element's error is left in sum n^2 g, in units of n.
double left_of(const NormedRow& row, const Squares& squares, size_t i) {
  const double mean = squares.said / static_cast<double>(row.got.size());
  return std::fabs(row.normed[i] * (says_something(row, i) ? mean - 1 : mean));
}

// The variance of sum n^2 g.
double variance_of(const NormedRow& row, const Squares& squares) {
  double variance = 0;
  for (size_t i = 0; i < row.got.size(); ++i) {
    const double off = left_of(row, squares, i) * most_off(row, i, squares.scale);
    // A lattice of half steps: twice that is a spacing.
    if (!is_computed(row)) variance += 4 * kOnLattice * square(off);
    if (says_something(row, i))
      variance += kAnywhere * square(row.normed[i] * normed_of(row, i, row.got[i]).length);
  }
  return variance;
}

// The most that errors of a sum that was computed leave of the first order in sum n^2 g, however
// they depend on each other.
double most_left(const NormedRow& row, const Squares& squares) {
  double most = 0;
  for (size_t i = 0; is_computed(row) && i < row.got.size(); ++i)
    most += left_of(row, squares, i) * most_off(row, i, squares.scale);
  return most;
}

}  // namespace

void ScaleSums::add(const ScaleSums& other) {
  rows += other.rows;
  cross += other.cross;
  exact += other.exact;
  half_way += other.half_way;
  power += other.power;
  scatter += other.scatter;
  allowed += other.allowed;
}

Statistic ScaleSums::statistic(double tail) const {
  const double gain = power > 0 ? cross / power : 0, z = deviations(*this);
  return {StatisticKind::gain, z / most_deviations(tail), 1,
          fmt::format("{} {:.3g} of itself too {}, {:.3g} standard errors more than what is not "
                      "known of its input explains",
                      rows == 1 ? "a row is" : "everything is", std::fabs(gain),
                      gain > 0 ? "large" : "small", z)};
}

void RowScales::add(const NormedRow& row) {
  if (!is_plain(row)) return;
  const Squares squares = squares_of(row);
  const double variance = variance_of(row, squares);
  if (!(squares.said > 0) || !(variance > 0) || !std::isfinite(variance + squares.moved)) return;
  const bool known = !is_computed(row);
  if (!known && squares.said < kNearlyAll * squares.all) return;
  const double scale = squares.said / variance;
  const double times = squares.turn_as_one ? kTurnedAsOne * kTurnedAsOne : 1;
  columns_.resize(std::max(columns_.size(), row.got.size()));
  ScaleSums sums{.rows = 1, .power = squares.said * scale, .scatter = squares.said * scale * times};
  for (size_t i = 0; i < row.got.size(); ++i) {
    if (!says_something(row, i)) continue;
    const double n = row.normed[i];
    const auto part_of = [&](double y) { return scale * n * (normed_of(row, i, y).middle - n); };
    const double part = part_of(row.got[i]);
    sums.cross += part;
    const double read = may_have_read(row, i);
    sums.exact += scale * n * (normed_of(row, i, stored_of(row, i, read)).middle - read);
    if (known && may_be_half_way(row, i))
      for (const double step : {-half_step(row, i), half_step(row, i)})
        sums.half_way += part_of(stored_of(row, i, n * (1 + step))) / 2;
    columns_[i] += part;
    squares_ += square(part);
  }
  sums.allowed = sums.power * (row.gain + squares.moved / (2 * squares.all)) +
                 scale * (squares.kept + most_left(row, squares));
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
