#include "src/judge/ops/judged_op.h"

#include <array>
#include <cmath>

#include "src/judge/ops/errors.h"

namespace lockstep {
namespace {

constexpr auto kJudgedOps = std::to_array<const JudgedOp*>(
    {&kJudgedGather, &kJudgedAngles, &kJudgedNorm, &kJudgedLinear, &kJudgedRope, &kJudgedCache,
     &kJudgedPartialAttention, &kJudgedLogSumExp, &kJudgedAttention, &kJudgedSiluMul, &kJudgedAdd,
     &kJudgedArgmax, &kJudgedTopK, &kJudgedSoftmax, &kJudgedExpertLinear, &kJudgedWeightedSum});
static_assert(kJudgedOps.size() == kOpKinds.size(), "an op kind has no file here");

}  // namespace

const JudgedOp& judged_op(OpKind kind) { return *kJudgedOps[static_cast<size_t>(kind)]; }

// Products of either sign, S = sqrt(K) times their sum.
JudgedOp::RightKernel JudgedOp::right_sum(const Sizes& sizes) {
  return {0.34 * sizes.terms, 8 * sizes.terms};
}

// Terms of either sign: their sizes add up to sqrt(n) times their sum, which may cancel.
double JudgedOp::spread_of_sum(double terms) { return 4 * walk_of(terms) * std::sqrt(terms); }

JudgedOp::Reach reach_of_sum(const Exact& e, const Step&, size_t i) {
  const auto n = static_cast<double>(e.terms);
  const double size = u * e.magnitude[i];
  return {kLambda * std::sqrt(n) * size, walk_of(n) * size};
}

double gain_of_sum(const Exact& e) { return truncation_gain(static_cast<double>(e.terms)); }

bool has_magnitude(const Exact& e) { return e.magnitude.size() == e.want.size(); }

JudgedOp::InnerError inner_of_angle(const Exact& e, size_t i) {
  const double size = std::fabs(e.want[i]), most = 4 * e.angle[i] * u,
               square = 3 * squared(e.angle[i] * u);
  return {most * e.turned[i] + squared(most) / 2 * size,
          square * squared(e.turned[i]) + 0.75 * squared(square * size)};
}

}  // namespace lockstep
