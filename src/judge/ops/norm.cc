// RMSNorm:  B = out + (lambda sqrt(n)/2 + 8) u |o|,  V = ulp^2/12 + (s u o)^2, all of it shared,
// s = hypot(w(n)/2 + 3, d/2). The root halves the relative error of the mean square, which is a sum
// of one sign; its own 2 ulp and the product are the rest. Of sums of equal numbers, which round
// alike, B has room for three times as much. A kernel has the value of a step to within the same.
// d (Exact::serial_error) is what a plain loop is off by. No random walk has it: squares of numbers
// of 8 bits have low bits that are seldom evenly spread (odd ones leave 1 when divided by 8), so
// that the roundings of a sum have a mean, which grows with n: 85 u of 5120 normal numbers in bf16.
#include <algorithm>
#include <cmath>

#include "src/judge/ops/errors.h"

namespace lockstep {
namespace {

using enum RoundingContract;

bool is_full(const Exact& e) {
  const auto width = static_cast<size_t>(e.shape.last());
  return e.serial_error.empty() || e.serial_error.size() * width == e.want.size();
}

// Standard deviation of the scale of an element's row, and the most it is off, in units of u.
double scale_deviation(const Exact& e, size_t i) {
  const double walk = walk_of(static_cast<double>(e.terms)) / 2 + 3;
  if (e.serial_error.empty()) return walk;
  return std::hypot(walk, e.serial_error[i / static_cast<size_t>(e.shape.last())] / 2);
}
double scale_bound(const Exact& e) { return kLambda * std::sqrt(e.terms) / 2 + 8; }

std::vector<RoundingContract> tried(const ContractTraits&) {
  return {fused, hf, unrounded_sum, hf_unrounded_sum};
}

// The deviation is that of a row, and made once for it.
void inner(const Exact& e, size_t first, DType, const JudgedOp::InnerErrors& errors) {
  const auto width = static_cast<size_t>(e.shape.last());
  const double bound = scale_bound(e);
  for (size_t at = 0, end = 0; at < errors.limit.size(); at = end) {
    end = std::min(errors.limit.size(), at + width - (first + at) % width);
    const double deviation = scale_deviation(e, first + at);
    for (size_t i = at; i < end; ++i) {
      const double size = u * std::fabs(e.want[first + i]), shared = squared(deviation * size);
      errors.limit[i] = bound * size;
      errors.variance[i] = errors.shared[i] = shared;
    }
  }
}

JudgedOp::Reach reach(const Exact& e, const Step& step, size_t i) {
  const double size = u * std::fabs(step.value[i]);
  return {scale_bound(e) * size, scale_deviation(e, i) * size};
}

// An inverse square root that is off by a few ulp, and a plain loop's sum.
double gain(const Exact& e) {
  double most = 0;
  for (const double error : e.serial_error) most = std::max(most, error);
  return 0x1p-21 + most / 2 * u;
}

// The mean square of a row of that width, and its root.
JudgedOp::RightKernel right_kernel(const JudgedOp::Sizes& sizes) {
  const double root = std::sqrt(sizes.terms);
  return {0.17 * root + 3, 4 * root + 8};
}

double spread(double terms) { return walk_of(terms) / 2 + 3; }

}  // namespace

const JudgedOp kJudgedNorm = {.kind = OpKind::norm,
                              .tried = tried,
                              .is_full = is_full,
                              .inner = inner,
                              .reach = reach,
                              .gain = gain,
                              .has_shared = true,
                              .meets_borders = true,
                              .right_kernel = right_kernel,
                              .spread = spread,
                              .in_proportion = true,
                              .is_elementwise = true};

}  // namespace lockstep
