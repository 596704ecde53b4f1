#include "src/selftest/stated_limit.h"

#include <algorithm>
#include <cmath>

namespace lockstep {

double stated_limit(const Seeable& s) {
  const JudgedOp& op = judged_op(s.op);
  const JudgedOp::RightKernel right = op.right_kernel(s.sizes);
  const double finer = unit_roundoff(DType::f32) / unit_roundoff(s.dtype);
  const double n = s.elements, v = right.usual * finer, b = right.most * finer;
  double size = 1.5 + b;
  if (s.by_chance) size = std::min(size, 20 / n + b);
  if (s.by_chance && s.dtype != DType::f32)
    size = std::min(size, 2 * (v + std::sqrt(42 * v / n) + 30 / n));
  if (s.beside_small && op.in_proportion) size = std::min(size, 20 * b / n);
  if (s.errors > 1 && n >= 16)
    size = std::min(size, 1.05 * (1 + 5 / std::sqrt(s.errors)) * std::sqrt(v * v + 1.0 / 3));
  return std::exp2(std::max<double>(kLeastStatedPower, std::ceil(std::log2(size))));
}

}  // namespace lockstep
