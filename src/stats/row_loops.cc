// Nothing here branches on an element: what does not count is multiplied by 0 or chosen against. A
// spacing is made of the exponent's bits, and a number is rounded by adding and taking away 1.5
// 2^52 of them, as ulp() and round_to() of kernels/base/dtype.h do, but for what is not an ordinary
// number.
#include "src/stats/row_loops.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/base/widest.h"
#include "src/stats/roundoff.h"
#include "src/stats/statistics.h"

namespace lockstep {
namespace {

constexpr size_t kLanes = 8;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Calls add(element, lanes, lane) for each of `count` elements: lanes[k] are eight sums of amount
// k.
template <size_t kSums>
struct Lanes {
  double sums[kSums][kLanes] = {};

  int64_t count(size_t k) const { return static_cast<int64_t>(total(k)); }
  double total(size_t k) const {
    const double* const s = sums[k];
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
  }
  double most(size_t k) const { return *std::max_element(sums[k], sums[k] + kLanes); }
};

template <typename Lanes, typename Add>
[[gnu::always_inline]] inline void each_element(size_t first, size_t count, Lanes& lanes,
                                                const Add& add) {
  const size_t end = first + count, whole = first + count / kLanes * kLanes;
  for (size_t i = first; i < whole; i += kLanes) {
#pragma omp simd
    for (size_t lane = 0; lane < kLanes; ++lane) add(i + lane, lane, lanes.sums);
  }
  for (size_t i = whole; i < end; ++i) add(i, i - whole, lanes.sums);
}

[[gnu::always_inline]] inline double larger(double a, double b) { return a > b ? a : b; }

[[gnu::always_inline]] inline double power_of_two_of(double x) {
  return std::bit_cast<double>(std::bit_cast<uint64_t>(x) & 0x7ff0000000000000);
}

}  // namespace

size_t WeighedRow::next_worse(std::span<const float> worst, std::span<const float> worst_misrounded,
                              size_t begin, size_t end) const {
  constexpr size_t kTogether = 32;
  const auto is_worse = [&](size_t i) __attribute__((always_inline)) {
    const float b = budgets[i], of_misrounded = misrounded[i] > 0 ? b : -1;
    return (unit[i] >= 0) & ((b > worst[i]) | (of_misrounded > worst_misrounded[i]));
  };
  size_t at = begin;
  on_widest_vectors([&]() __attribute__((always_inline)) {
    // Mostly none is.
    for (; at + kTogether <= end; at += kTogether) {
      int found = 0;
#pragma omp simd reduction(| : found)
      for (size_t i = at; i < at + kTogether; ++i) found |= is_worse(i) ? 1 : 0;
      if (found != 0) break;
    }
  });
  while (at < end && !is_worse(at)) ++at;
  return at;
}

namespace {

enum RowAmount : size_t {
  kSumOfWant,
  kLargest,
  kSumOfSquares,
  kInner,
  kWorst,
  kWorstDiffering,
  kOver,
  kDifferent,
  kOdd,
  kRowAmounts
};

RowSums sums_of(const Lanes<kRowAmounts>& lanes) {
  if (lanes.total(kOdd) > 0) return {};
  return {.plain = true,
          .power = lanes.total(kSumOfWant),
          .largest = lanes.most(kLargest),
          .squares = lanes.total(kSumOfSquares),
          .inner = lanes.most(kInner),
          .most = lanes.most(kWorst),
          .most_differing = lanes.most(kWorstDiffering),
          .over = lanes.count(kOver),
          .different = lanes.count(kDifferent)};
}

}  // namespace

RowSums look_at_row(const RowNumbers& row, DType dtype, bool exact, StoredRow& stored) {
  const size_t count = row.got.size();
  for (auto* values : {&stored.rounded, &stored.spacing, &stored.budgets, &stored.inverse})
    values->resize(count);
  const FloatFormat format = format_of(dtype);
  const double least = std::ldexp(1.0, format.min_exponent), max = format.max;
  const double of_power = std::ldexp(1.0, 1 - format.precision);
  const double *want = row.want.data(), *got = row.got.data(), *limit = row.limit.data();
  const double* variance = row.variance.data();
  double *rounded = stored.rounded.data(), *spacing = stored.spacing.data();
  double *budgets = stored.budgets.data(), *inverse = stored.inverse.data();
  const double sign_counts = exact ? 1 : 0, borders_count = row.meets_borders && !exact ? 1 : 0;
  Lanes<kRowAmounts> lanes;
  for (size_t lane = 0; lane < kLanes; ++lane) lanes.sums[kWorstDiffering][lane] = -1;
  on_widest_vectors([&]() __attribute__((always_inline)) {
    each_element(
        0, count, lanes,
        [&](size_t i, size_t lane, double(&sums)[kRowAmounts][kLanes])
            __attribute__((always_inline)) {
              const double w = want[i], g = got[i], b = limit[i], v = variance[i];
              const double s = larger(power_of_two_of(w), least) * of_power, shift = 0x1.8p52 * s;
              const double nearest = std::copysign((w + shift) - shift, w);
              const double eta = g - w, size = std::fabs(eta), half = s / 2, of_budget = size / b;
              const double room = b - half, beyond = (size - half) / room;
              const double to_border = std::fabs(half - std::fabs(nearest - w));
              const bool either = on_border(to_border, room) & on_border(size - half, room);
              const double r = either & (borders_count > 0) ? g : nearest;
              const bool signs = std::copysign(1.0, g) != std::copysign(1.0, r);
              const bool differs = (g != r) | (signs & (sign_counts > 0));
              rounded[i] = r, spacing[i] = s, budgets[i] = of_budget;
              inverse[i] = (v > 0) ? 1 / v : 0;
              sums[kSumOfWant][lane] += w * w;
              sums[kLargest][lane] = larger(std::fabs(g), sums[kLargest][lane]);
              sums[kSumOfSquares][lane] += eta * eta;
              sums[kInner][lane] = larger(room > 0 ? beyond : 0, sums[kInner][lane]);
              sums[kWorst][lane] = larger(of_budget, sums[kWorst][lane]);
              sums[kWorstDiffering][lane] =
                  larger(differs ? of_budget : -1, sums[kWorstDiffering][lane]);
              sums[kOver][lane] += of_budget > 1 ? 1 : 0;
              sums[kDifferent][lane] += differs ? 1 : 0;
              // Written so that NaN is odd too.
              const bool plain = (std::fabs(w) < max) & (std::fabs(r) <= max) &
                                 (std::fabs(g) < max) & (b > 0) & (b < kInfinity) & (v > 0) &
                                 (inverse[i] < kInfinity);
              sums[kOdd][lane] += plain ? 0 : 1;
            });
  });
  return sums_of(lanes);
}

void weigh_row(const RowNumbers& row, const StoredRow& stored, bool rows_alike, Moments& sum,
               WeighedRow& weighed) {
  enum { kElements, kUnits, kDue, kMisrounded, kMay, kPower, kOffset, kCross, kScatter, kSums };
  const double *want = row.want.data(), *got = row.got.data(), *may = row.misround.data();
  const double *rounded = stored.rounded.data(), *spacing = stored.spacing.data();
  const double *inverse = stored.inverse.data(), *budgets = stored.budgets.data();
  const double most_usual = row.usual_misround, most_in_gain = row.misround_in_gain;
  double* const w_want = weighed.want.data();
  float *w_got = weighed.got.data(), *w_unit = weighed.unit.data(), *w_due = weighed.due.data();
  float *w_budgets = weighed.budgets.data(), *w_may = weighed.may_misround.data();
  float* const w_misrounded = weighed.misrounded.data();
  Lanes<kSums> lanes;
  on_widest_vectors([&]() __attribute__((always_inline)) {
    each_element(
        0, row.got.size(), lanes,
        [&](size_t i, size_t lane, double(&sums)[kSums][kLanes]) __attribute__((always_inline)) {
          const double w = want[i], g = got[i], r = rounded[i], over_v = inverse[i], s = spacing[i];
          const double counts = over_v > 0 ? 1 : 0;  // else held to B alone
          const double eta = g - w, unit = eta * eta * over_v, rest = r - w;
          // A rounding that is evenly spread has a mean square of ulp^2 / 12: `due` is by how much
          // that of this exact result differs.
          const double due = (rest * rest - s * s / 12) * over_v;
          const double misrounded = g != r ? counts : 0, usual = may[i] <= most_usual ? 1 : 0;
          const double moved = may[i] <= most_in_gain ? g - r : 0, term = moved * w * over_v;
          w_want[i] = w;
          w_got[i] = to_f32(g);
          w_unit[i] = to_f32(counts > 0 ? unit : -1);
          w_due[i] = to_f32(due);
          w_budgets[i] = to_f32(budgets[i]);
          w_may[i] = to_f32(counts * may[i]);
          w_misrounded[i] = to_f32(misrounded);
          sums[kElements][lane] += counts;
          sums[kUnits][lane] += unit;
          sums[kDue][lane] += due;
          sums[kMisrounded][lane] += misrounded * usual;
          sums[kMay][lane] += counts * usual * may[i];
          sums[kPower][lane] += w * w * over_v;
          sums[kOffset][lane] += moved * std::sqrt(over_v);
          sums[kCross][lane] += term;
          sums[kScatter][lane] += term * term;
        });
  });
  sum.elements += lanes.count(kElements);
  sum.squares += lanes.total(kUnits);
  sum.due += lanes.total(kDue);
  sum.misrounded += lanes.count(kMisrounded);
  sum.may_misround += lanes.total(kMay);
  sum.power += lanes.total(kPower);
  sum.offset += lanes.total(kOffset);
  sum.cross += lanes.total(kCross);
  if (row.shared.empty()) sum.cross_scatter += lanes.total(kScatter);
  if (!rows_alike || row.carried.empty()) {
    std::ranges::fill(weighed.common, 0.0f);
    return;
  }
  for (size_t i = 0; i < row.got.size(); ++i) {
    weighed.common[i] = to_f32(row.carried[i] * inverse[i]);
    sum.common += weighed.common[i];
  }
}

namespace {

// The variance that an element shares with its group: by the op, and by its inputs.
template <bool kByOp, bool kByInputs>
[[gnu::always_inline]] inline double shared_of(const double* of_op, const double* of_inputs,
                                               size_t i) {
  return (kByOp ? of_op[i] : 0) + (kByInputs ? of_inputs[i] : 0);
}

enum GroupAmount : size_t {
  kElements,
  kUnits,
  kDue,
  kCommon,
  kMisrounded,
  kMay,
  kShared,
  kSquares,
  kCarried,
  kCross,
  kMost,
  kMostMisrounded,
  kAmounts
};

template <bool kByOp, bool kByInputs>
Lanes<kAmounts> sum_group(const RowNumbers& row, const double* of_op, const double* of_inputs,
                          const StoredRow& stored, const WeighedRow& weighed, size_t first,
                          size_t count) {
  const double *want = row.want.data(), *got = row.got.data(), *rounded = stored.rounded.data();
  const double* inverse = stored.inverse.data();
  const float *unit = weighed.unit.data(), *due = weighed.due.data();
  const float *budgets = weighed.budgets.data(), *may = weighed.may_misround.data();
  const float *common = weighed.common.data(), *misrounded = weighed.misrounded.data();
  constexpr double kGrouped = kByOp || kByInputs ? 1 : 0;
  Lanes<kAmounts> lanes;
  for (const size_t k : {kMost, kMostMisrounded})
    for (double& most : lanes.sums[k]) most = -1;
  on_widest_vectors([&]() __attribute__((always_inline)) {
    each_element(
        first, count, lanes,
        [&](size_t i, size_t lane, double(&sums)[kAmounts][kLanes]) __attribute__((always_inline)) {
          // All is read before it is asked what of it counts.
          const double of_unit = unit[i], of_due = due[i], of_common = common[i], of_may = may[i];
          const double is_misrounded = misrounded[i], of_budget = budgets[i], over_v = inverse[i];
          const double delta = got[i] - rounded[i], w = want[i];
          const double one = of_unit >= 0 ? 1 : 0;
          const double f = one * shared_of<kByOp, kByInputs>(of_op, of_inputs, i) * over_v;
          const double term = delta * w * over_v;
          sums[kElements][lane] += one;
          sums[kUnits][lane] += of_unit >= 0 ? of_unit : 0;
          sums[kDue][lane] += one * of_due;
          sums[kCommon][lane] += one * of_common;
          sums[kMisrounded][lane] += one * is_misrounded;
          sums[kMay][lane] += one * of_may;
          sums[kShared][lane] += f;
          sums[kSquares][lane] += f * f;
          sums[kCarried][lane] += one * shared_of<false, kByInputs>(of_op, of_inputs, i) * over_v;
          sums[kCross][lane] += std::fabs(term) < kInfinity ? one * kGrouped * term : 0;
          const double counted = of_unit >= 0 ? of_budget : -1;
          sums[kMost][lane] = larger(counted, sums[kMost][lane]);
          const double turned = is_misrounded > 0 ? counted : -1;
          sums[kMostMisrounded][lane] = larger(turned, sums[kMostMisrounded][lane]);
        });
  });
  return lanes;
}

}  // namespace

uint64_t hash_of_row(std::span<const double> want, std::span<const double> got) {
  thread_local std::vector<uint64_t> factors;
  for (size_t i = factors.size(); i < want.size(); ++i) factors.push_back(hash_factor(i));
  const double *w = want.data(), *g = got.data();
  const uint64_t* const f = factors.data();
  const size_t count = want.size();
  uint64_t sum = 0;
  on_widest_vectors([&]() __attribute__((always_inline)) {
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < count; ++i) {
      const uint64_t both = uint64_t{std::bit_cast<uint32_t>(to_f32(w[i]))} << 32 |
                            std::bit_cast<uint32_t>(to_f32(g[i]));
      const uint64_t term = both * f[i];
      sum += term ^ (term >> 32);
    }
  });
  return sum;
}

GroupSums sum_group(const RowNumbers& row, std::span<const double> shared,
                    std::span<const double> carried, const StoredRow& stored,
                    const WeighedRow& weighed, size_t first, size_t count) {
  const auto sum = shared.empty()
                       ? carried.empty() ? sum_group<false, false> : sum_group<false, true>
                   : carried.empty() ? sum_group<true, false>
                                     : sum_group<true, true>;
  const Lanes<kAmounts> lanes =
      sum(row, shared.data(), carried.data(), stored, weighed, first, count);
  return {.scatter = {.elements = lanes.count(kElements),
                      .squares = lanes.total(kUnits),
                      .due = lanes.total(kDue),
                      .common = lanes.total(kCommon),
                      .misrounded = lanes.count(kMisrounded),
                      .may_misround = lanes.total(kMay)},
          .sum = lanes.total(kShared),
          .squares = lanes.total(kSquares),
          .carried = lanes.total(kCarried),
          .cross = lanes.total(kCross),
          .most = to_f32(lanes.most(kMost)),
          .most_misrounded = to_f32(lanes.most(kMostMisrounded))};
}

}  // namespace lockstep
