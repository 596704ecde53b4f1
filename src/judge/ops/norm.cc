// RMSNorm:  B = out + (lambda sqrt(n)/2 + 8) u |o|,  V = ulp^2/12 + (s u o)^2, all of it shared,
// s = w(n)/2 + 3. The root halves the relative error of the mean square, which is a sum of one
// sign; its own 2 ulp and the product are the rest. Of sums of equal numbers, which round alike, B
// has room for three times as much. A kernel has the value of a step to within the same.
#include <cmath>

#include "src/judge/ops/errors.h"

namespace lockstep {
namespace {

using enum RoundingContract;

// Standard deviation of the scale, and the most it is off, in units of u.
double scale_deviation(const Exact& e) { return walk_of(static_cast<double>(e.terms)) / 2 + 3; }
double scale_bound(const Exact& e) { return kLambda * std::sqrt(e.terms) / 2 + 8; }

std::vector<RoundingContract> tried(const ContractTraits&) {
  return {fused, hf, unrounded_sum, hf_unrounded_sum};
}

InnerError inner(const Exact& e, size_t i, DType) {
  const double size = u * std::fabs(e.want[i]), shared = squared(scale_deviation(e) * size);
  return {scale_bound(e) * size, shared, shared};
}

Reach reach(const Exact& e, const Step& step, size_t i) {
  const double size = u * std::fabs(step.value[i]);
  return {scale_bound(e) * size, scale_deviation(e) * size};
}

// An inverse square root that is off by a few ulp.
double gain(const Exact&) { return 0x1p-21; }

}  // namespace

const JudgedOp kJudgedNorm = {.kind = OpKind::norm,
                              .tried = tried,
                              .inner = inner,
                              .reach = reach,
                              .gain = gain,
                              .has_shared = true};

}  // namespace lockstep
