// silu(gate) up:  B = out + 16 u |o| + f,  V = ulp^2/12 + (3 u o)^2 + f^2,  f = 88 2^-126 |up|:
// where the sigmoid of a gate is below 2^-126, its silu is below 88 2^-126, and 0 in kernels whose
// 1 + exp(-gate) overflows. A kernel has silu(gate), z, to within 16 u |z|, usually 3 u |z|.
#include <cmath>

#include "src/judge/ops/errors.h"

namespace lockstep {
namespace {

using enum RoundingContract;

std::vector<RoundingContract> tried(const ContractTraits&) { return {fused, hf}; }

bool is_full(const Exact& e) { return e.factor.size() == e.want.size(); }

JudgedOp::InnerError inner(const Exact& e, size_t i, DType) {
  const double size = u * std::fabs(e.want[i]);
  const double underflow = 88 * kLeastNormal * std::fabs(e.factor[i]);
  return {16 * size + underflow, squared(3 * size) + squared(underflow), 0, underflow};
}

JudgedOp::Reach reach(const Exact&, const Step& step, size_t i) {
  const double size = u * std::fabs(step.value[i]);
  return {16 * size, 3 * size};
}

// An exponential that is off by a few ulp.
double gain(const Exact&) { return 0x1p-21; }

JudgedOp::RightKernel right_kernel(const JudgedOp::Sizes&) { return {3, 16}; }

double spread(double) { return 8; }

}  // namespace

const JudgedOp kJudgedSiluMul = {.kind = OpKind::silu_mul,
                                 .tried = tried,
                                 .is_full = is_full,
                                 .inner = each<inner>,
                                 .reach = reach,
                                 .gain = gain,
                                 .has_underflow = true,
                                 .right_kernel = right_kernel,
                                 .spread = spread,
                                 .in_proportion = true,
                                 .is_elementwise = true,
                                 .may_lose_weights = true};

}  // namespace lockstep
