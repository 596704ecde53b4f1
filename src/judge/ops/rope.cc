// Rotary embedding:  B = out + 4 u (|x1|+|x2|) + what the angle moves,
// V = ulp^2/12 + (0.85 u)^2 ((x1 c)^2+(x2 s)^2) + what the angle moves.
// c, s and the products round once each: u^2 (1/3 + 1/3) of each term. The angle turns the pair, so
// it shows in t = x2 c - x1 s. A kernel may make its own angles, so this is so where the tables
// were seen too.
//
// The steps are a cosine and a sine, which a kernel has to within (3 + 4 a |sin|/|cos|) u |cos|,
// and of sin alike, usually a third. Their product with the slope hf rounds next: that may turn as
// well, by ulp(z f) more. All heads and layers read one table, so that its ties are no independent
// errors.
#include <cmath>

#include "src/judge/ops/errors.h"

namespace lockstep {
namespace {

using enum RoundingContract;

std::vector<RoundingContract> tried(const ContractTraits&) { return {fused, tables_rounded, hf}; }

std::vector<RoundingContract> declared(const ContractTraits& traits) {
  if (traits.dtype == DType::f32) return {angles_iterated};
  return {};
}

bool is_full(const Exact& e) {
  const size_t n = e.want.size();
  return has_magnitude(e) && e.angle.size() == n && e.x1c_x2s.size() == n && e.turned.size() == n;
}

bool fits(const Exact& e, const Step& step) { return step.other.size() == e.want.size(); }

JudgedOp::InnerError inner(const Exact& e, size_t i, DType) {
  const JudgedOp::InnerError by = inner_of_angle(e, i);
  return {4 * u * e.magnitude[i] + by.limit, squared(0.85 * u * e.x1c_x2s[i]) + by.variance};
}

JudgedOp::Reach reach(const Exact& e, const Step& step, size_t i) {
  const double most = (3 * std::fabs(step.value[i]) + 4 * e.angle[i] * step.other[i]) * u;
  return {most, most / 3};
}

double step_moves(const Exact& e, const Step& step, size_t i, double moved, DType dtype) {
  if (e.contract != hf) return moved;
  const double slope = step.slope.empty() ? 1 : std::fabs(step.slope[i]);
  return moved + ulp(slope * step.value[i], dtype);
}

double gain(const Exact&) { return 0x1p-22; }

// At most 6 of all elements together, whose pairs are 1.5 on average.
JudgedOp::RightKernel right_kernel(const JudgedOp::Sizes& sizes) { return {1.2, 4 * sizes.pair}; }

double spread(double) { return 8; }

}  // namespace

const JudgedOp kJudgedRope = {.kind = OpKind::rope,
                              .tried = tried,
                              .declared = declared,
                              .is_full = is_full,
                              .fits = fits,
                              .inner = each<inner>,
                              .reach = reach,
                              .step_moves = step_moves,
                              .gain = gain,
                              .one_table = true,
                              .right_kernel = right_kernel,
                              .spread = spread,
                              .is_elementwise = true};

}  // namespace lockstep
