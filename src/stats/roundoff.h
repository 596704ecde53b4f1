// The errors that fp32 arithmetic and roundings on the way may make: the constants of budgets.h,
// and of an oracle that must say which of its own roundings another kernel may have taken the other
// way.
#pragma once

#include <cmath>
#include <numbers>

#include "kernels/base/dtype.h"

namespace lockstep {

// B is exceeded by chance about once in 1e15 correct elements per kLambda = 8 standard deviations
// of an accumulation's random walk; over all comparisons of a run the risk stays about 1e-3.
inline constexpr double kLambda = 8;
// Unit roundoff of the accumulators: every op here sums in fp32.
inline constexpr double kAccumulatorRoundoff = 0x1p-24;
// The least normal number of fp32.
inline constexpr double kLeastNormal = 0x1p-126;

// Standard deviation of a sum of n products in fp32, one after the other, in units of u S, S the
// sum of their sizes. Each addition is off by u/sqrt(3) of what there is so far at most, and that
// grows to S evenly when all are of one sign: sqrt(sum (k/n)^2 / 3) = sqrt(n)/3. Products of either
// sign stay below.
inline double walk_of(double n) { return 0.34 * std::sqrt(n); }

// The part of its deviation walk_of(n) u S that a right sum of n products is off by on average, at
// most, where they nearly cancel in all rows alike: max(8, 0.135 sqrt(n)) u S. Rows that are nearly
// alike have one error in common, which an accumulator that cuts has in one direction. Of 512 such
// columns of cuBLAS on an H100 (1024 rows, torch 2.11) the worst have, for n of 64 to 8192: where
// signs fall by chance 0.7 to 4.5 u S, behind a SiLU 1 to 9.6, where two outliers cancel 2.5 to
// 11.3, of which 7.3 at 1024 and, 3 % over this, 8.9 at 4096. fp32 that rounds to nearest has 0.3,
// 0.9, and 0.12 sqrt(n) u S where products of one sign all come first. Where these are cut on the
// way, a sum is off by sqrt(n) u S and more, which V has no room for either.
inline double common_part(double n) {
  return std::min(1.0, std::max(8.0, 0.135 * std::sqrt(n)) / walk_of(n));
}

// A value that is rounded on the way: `near` is how far it may be from the exact one (in units of
// the value), and the border between two numbers of the dtype is within that. Kernels that are
// right then take either.
struct NearTie {
  double step = 0;    // distance of the two numbers; 0: not near
  double chance = 0;  // that a kernel takes the other one
};

// The error from z, which a kernel has to within `most` at the very most and `usual` (one standard
// deviation) otherwise, both absolute, before it rounds it to `dtype`.
inline NearTie near_tie(double z, double most, double usual, DType dtype) {
  const double step = ulp(z, dtype), at = std::fabs(z) / step;
  const double distance = std::fabs(at - std::floor(at) - 0.5) * step;
  if (!(distance <= most)) return {};
  const double chance = usual > 0 ? 0.5 * std::erfc(distance / (usual * std::sqrt(2.0))) : 0;
  return {step, chance};
}

// The most that an oracle, which is of fp64, is off, as a share of what a kernel of fp32 may be at
// most. Unit roundoffs differ by 2^-29; the rest is room for another order of the same sums.
inline constexpr double kOracleError = 0x1p-26;

// Whether an exact result lies on the border of two stored numbers as far as its oracle can tell: a
// mean of three of them, which fp64 has a little beside it. `distance` is that from the border,
// `inner` what a kernel may be off before it rounds. Both neighbours are then the exact result
// rounded: a kernel that has 1/3 in fp32, a little too large, takes the outer one each time.
[[gnu::always_inline]] inline bool on_border(double distance, double inner) {
  return distance <= kOracleError * inner;
}

// Up to this chance of another number an error is so small that it crosses one border at most.
inline constexpr double kOneBorder = 0.1;

// Four times the chance of another number by an error of 3 u of the result itself, in 16 bits.
inline double misround_in_proportion(DType dtype) {
  return 4 * 3 * kAccumulatorRoundoff / unit_roundoff(dtype);
}

// The chance that a kernel's error before the rounding of z turns it the other way, `chance` being
// that of numbers which lie anywhere: an error of standard deviation s makes it s / ulp at most.
// Exact results need not lie anywhere. A product of two numbers of 8 bits times a scale near a
// simple fraction is next to the border of two numbers more often than one in so many, and what
// lies far from it is turned by no right kernel. The mean over all places of z is `chance`.
inline double turning_chance(double z, double chance, DType dtype) {
  const double at = std::fabs(z) / ulp(z, dtype);
  const double distance = std::fabs(at - std::floor(at) - 0.5);
  if (!(chance > 0)) return 0;
  return 0.5 * std::erfc(distance / (chance * std::sqrt(std::numbers::pi)));
}

}  // namespace lockstep
