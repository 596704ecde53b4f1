// Weights of the chosen experts:  B = out + (16 + 2 m + lambda sqrt(n)) u |o| + 2^-126,
// V = ulp^2/12 + ((3 + 0.3 (m + sqrt(n))) u o)^2 + 2^-252, all shared, m = Exact::magnitude. An exp
// of x is off by |x| u for the rounding of x and some ulp of its own, both in the numerator and, by
// their mean, in the sum of n.
#include <cmath>

#include "src/judge/ops/errors.h"

namespace lockstep {
namespace {

JudgedOp::InnerError inner(const Exact& e, size_t i, DType) {
  const double size = u * std::fabs(e.want[i]);
  const double walk = std::sqrt(e.terms);
  const double shared = squared((3 + 0.3 * (e.magnitude[i] + walk)) * size);
  return {(16 + 2 * e.magnitude[i] + kLambda * walk) * size + kLeastNormal,
          shared + squared(kLeastNormal), shared, kLeastNormal};
}

double gain(const Exact&) { return 0x1p-22; }

JudgedOp::RightKernel right_kernel(const JudgedOp::Sizes& sizes) {
  const double root = std::sqrt(sizes.terms);
  return {5 + 0.3 * root, 32 + 8 * root};
}

double spread(double) { return 8; }

}  // namespace

const JudgedOp kJudgedSoftmax = {.kind = OpKind::softmax,
                                 .is_full = has_magnitude,
                                 .inner = each<inner>,
                                 .gain = gain,
                                 .has_shared = true,
                                 .has_underflow = true,
                                 .right_kernel = right_kernel,
                                 .spread = spread,
                                 .is_elementwise = true,
                                 .may_lose_weights = true};

}  // namespace lockstep
