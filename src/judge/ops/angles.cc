// Cosines and sines of the rotary angles, in fp32 whatever the run's dtype:
// B = out + 4 u |o| + what the angle moves,  V = ulp^2/12 + (u o)^2 + what the angle moves; t, the
// derivative by the angle, is of a cosine its sine.
#include <cmath>

#include "src/judge/ops/errors.h"

namespace lockstep {
namespace {

bool is_full(const Exact& e) {
  return e.angle.size() == e.want.size() && e.turned.size() == e.want.size();
}

JudgedOp::InnerError inner(const Exact& e, size_t i, DType) {
  const JudgedOp::InnerError by = inner_of_angle(e, i);
  const double size = u * std::fabs(e.want[i]);
  return {4 * size + by.limit, squared(size) + by.variance};
}

double gain(const Exact&) { return 0x1p-22; }

}  // namespace

const JudgedOp kJudgedAngles = {
    .kind = OpKind::angles, .is_full = is_full, .inner = each<inner>, .gain = gain};

}  // namespace lockstep
