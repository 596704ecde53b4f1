#pragma once

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "probes/points.h"
#include "src/judge/oracle.h"
#include "src/stats/roundoff.h"
#include "traces/trace.h"

namespace lockstep {

// Neighbours in Exact::want, such as those of a row.
struct Elements {
  size_t first = 0;
  size_t count = std::dynamic_extent;  // all that follow
};

// The most that one correct evaluation differs from Exact::want, per element, in the unit of the
// tensor.
// Limit and variance are above zero wherever the exact result is finite. Every vector that is not
// empty has one entry an element that was asked for, in their order.
struct Budget {
  std::vector<double> limit;  // B: no correct kernel is further away
  // V: expected square of the difference, uniform rounding included. Infinity: what the element is
  // off by, others elsewhere are too; it is held to B alone.
  std::vector<double> variance;
  // The part of V that all elements of one head and row have in common (of one row, where there are
  // no heads), because one wrong score or scale moves them together. Empty: they are independent.
  std::vector<double> shared;
  // The part of V that widen() added, for errors of the op's inputs. Empty: none.
  std::vector<double> carried;
  // The part of B for what is no normal number of fp32 on the way, which kernels may make 0. Empty:
  // the op makes no such numbers.
  std::vector<double> underflow;
  // How likely it is, at most, that a correct kernel stores another number than `want` rounded: an
  // error of standard deviation s before the store crosses the border between two numbers with a
  // chance of E|error| / ulp <= s / ulp, under JudgedOp::meets_borders the more often the nearer
  // `want` lies to it (roundoff.h, turning_chance), as under JudgedOp::is_product; and what a
  // rounding on the way may do of itself.
  // A sum whose products nearly cancel has a finer spacing and the same error, and whole columns of
  // them do where all rows are nearly alike, as means over many keys are. So where common_part() of
  // s / ulp is more than `misrounds`, it is that.
  std::vector<double> misround;
  double gain = 0;       // relative error that all elements may have in common
  double misrounds = 1;  // the most of `misround` where nothing cancels or is rounded on the way
  // An element whose `misround` is more is in T3 of columns and heads alone: of a sum, `misrounds`.
  // So many of those that cancel may be misrounded that few of the others would show beside them.
  double usual_misround = std::numeric_limits<double>::infinity();
  // An element whose `misround` is more is not in T5: under JudgedOp::is_product,
  // misround_in_proportion(), and no limit in fp32. Which neighbour such a product gets, a share of
  // u decides, and kernels may lose it beside 1/2 or 1. All of them then go by one rule, to the
  // even number say, which is no gain of the other elements. Nor is what a tanh near -1 is off by,
  // which libraries have on one side of it more often than on the other.
  double misround_in_gain = std::numeric_limits<double>::infinity();
  // JudgedOp::meets_borders, of a result that nothing rounds on the way: of those that lie on a
  // border both neighbours are right.
  bool meets_borders = false;
};

// The budget of a result in `dtype` of a kernel that rounds as Exact::contract says. Formulas after
// Higham and Mary 2019 (probabilistic bounds); measured on CPU and GPU libraries the largest
// difference stays under B in every dtype.
//   B = out + the op's JudgedOp::InnerError::limit     V = ulp^2/12 + its variance (src/judge/ops,
//   a file a kind) out = ulp(|want| + the rest of B) / 2, u = kAccumulatorRoundoff
// Roundings on the way (Exact::steps, Exact::ties) are those of the exact chain, and no tolerance,
// but where its value lies so near the border of two numbers that fp32 cannot tell: a step z of
// slope f = d want / d z adds ulp(z) |f| to B there, chance (ulp(z) f)^2 to V and chance to
// misround (roundoff.h, near_tie).
// Where all heads and layers read the values in one table (rope), its ties are no independent
// errors: V is infinite there. misrounds: bf16 .02, fp16 .10, twice and more of what matrix
// products on CPUs and GPUs have; no limit in fp32. inside: the dtype that the contract rounds to
// on the way, where the result's is another. Throws Error when `exact` lacks a magnitude that `op`
// needs, or some of the elements. Several threads may ask at once.
Budget budget_of(OpKind op, const Exact& exact, DType dtype, Elements elements = {},
                 std::optional<DType> inside = {});

// Budget::misrounds of a result in that dtype under that contract.
double misrounds_of(OpKind op, RoundingContract contract, DType dtype);
// Budget::gain.
double gain_of(OpKind op, const Exact& exact);

// The standard deviations that B has of the errors which an op's inputs bring.
inline constexpr double kCarriedDeviations = 8;
// The roundings on the way add so much to an element where the op's inputs are known but for an
// error: each of them may go the other way. Two roundings of numbers that are not told apart differ
// by ulp^2/6 in the mean square.
struct Turned {
  double most = 0;
  double variance = 0;
};
// exact: under the contract exact.contract, of which `fused` has no rounding on the way to turn;
// dtype: that it rounds to on the way.
Turned turned_by_inputs(const Exact& exact, size_t element, DType dtype);

// B and V have room for so many times the variance that samples show (carried.h). It is known from
// 16 of them, one for each element in the worst case, where all of a head are moved along one
// direction: by Student's t of 16 degrees an error of 8 sqrt(2) of such deviations has a chance of
// 5e-9, one of 8 has 5e-7, too much for the heads of a long run. Measured with all roundings
// between two residuals hidden, right runs of two models come to .66 of B.
inline constexpr double kCarriedVariance = 2;
// Widens the budget of a row, whose elements begin at `first`, by errors of the op's inputs, of
// that variance by element, and by what they turn. The elements of a row have them in common, as
// one wrong input moves all; so no statistic of shares or gains is held. dtype: that the contract
// rounds to on the way.
void widen(Budget& budget, const Exact& exact, size_t first, std::span<const double> variance,
           DType dtype);

}  // namespace lockstep
