// Errors that several kinds of op have alike.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/judge/ops/judged_op.h"
#include "src/stats/roundoff.h"

namespace lockstep {

// Unit roundoff of the accumulators.
inline constexpr double u = kAccumulatorRoundoff;
inline double squared(double x) { return x * x; }

// An accumulator that truncates 16 products at a time is 2^-23 too small with each.
inline double truncation_gain(double products) { return std::max(1.0, products / 16) * 0x1p-23; }

// Asks `one` for each of some neighbours: a loop an op, into which `one` is compiled.
template <JudgedOp::InnerError (*one)(const Exact&, size_t element, DType)>
void each(const Exact& e, size_t first, DType dtype, const JudgedOp::InnerErrors& errors) {
  double *limit = errors.limit.data(), *variance = errors.variance.data();
  double* const shared = errors.shared.empty() ? nullptr : errors.shared.data();
  double* const underflow = errors.underflow.empty() ? nullptr : errors.underflow.data();
  for (size_t i = 0; i < errors.limit.size(); ++i) {
    const JudgedOp::InnerError error = one(e, first + i, dtype);
    limit[i] = error.limit, variance[i] = error.variance;
    if (shared) shared[i] = error.shared;
    if (underflow) underflow[i] = error.underflow;
  }
}

// A sum of e.terms products: B = lambda sqrt(n) u S, V = (w(n) u S)^2, w(n) = 0.34 sqrt(n)
// (roundoff.h).
inline JudgedOp::InnerError inner_of_sum(const Exact& e, size_t i, DType) {
  const auto n = static_cast<double>(e.terms);
  const double size = u * e.magnitude[i];
  return {kLambda * std::sqrt(n) * size, squared(walk_of(n) * size)};
}
JudgedOp::Reach reach_of_sum(const Exact& e, const Step&, size_t i);
double gain_of_sum(const Exact& e);
bool has_magnitude(const Exact& e);

// The contracts of attention, which its shares and the logarithms of their sums have too.
std::vector<RoundingContract> tried_of_attention(const ContractTraits&);
std::vector<RoundingContract> declared_of_attention(const ContractTraits& traits);
bool knows_steps_of_attention(RoundingContract contract);

// An angle that is off by Exact::angle units of u moves a result: first by its derivative t,
// and where that is 0 by the curve. B = 4 a u |t| + (4 a u)^2 |o| / 2, V = d^2 t^2 + 3/4 d^4 o^2,
// d^2 = 3 (a u)^2: the mean of d^4 is three times that of d^2 squared. A power of a library is off
// by 2 u, the division and the product with the position by one each. What a frequency is off by,
// all positions share: of five bases and six sizes of heads the worst is 1.42 u, which with a third
// of u^2 for the product is 2.4 of these 3.
JudgedOp::InnerError inner_of_angle(const Exact& e, size_t i);

}  // namespace lockstep
