// The size from which on a selftest wants an effect to be found. It follows from what right kernels
// are off by alone, and knows no budget and no limit of the judge's.
#pragma once

#include "kernels/base/dtype.h"
#include "src/judge/ops/judged_op.h"

namespace lockstep {

// The facts of a place that decide how small an effect can be seen there.
struct Seeable {
  OpKind op = OpKind::linear;
  DType dtype = DType::bf16;
  JudgedOp::Sizes sizes;
  double elements = 0;        // that the effect is put in
  double errors = 0;          // of a right kernel in them that are independent of each other
  bool by_chance = true;      // how they round; else they lie close to numbers of the dtype
  bool beside_small = false;  // an offset or noise, which is large beside small results
};

// No size under 2 to this power is stated.
inline constexpr int kLeastStatedPower = -8;

// The size in ulp at which every judge that is worth the name finds an effect: a power of two.
//
// In units of u = 2^-p of the result, a right kernel that computes in fp32 is off by v on average
// and b at most before it rounds (Higham and Mary 2019): the numbers of JudgedOp::right_kernel,
// times 2^(p-24), which fp32 is finer by.
// The least of these:
//   - one element is off by a rounding, half an ulp of doubt and b: 1.5 + b;
//   - of n elements each crosses the border to the next number with a chance of size/2 or more:
//     20/n + b leaves a chance of e^-10 that none does;
//   - the share of them that do, size/2, is more than the v that a right kernel has and what n of
//     them may have by a chance of 1e-12: 2 (v + sqrt(42 v/n) + 30/n), not in fp32;
//   - where a right kernel is off in proportion to each result, JudgedOp::in_proportion, an offset
//     is large beside the least of n results, which are r/n or so: 20 b/n;
//   - the root mean square of m independent errors, in 16 elements or more (fewer are worth
//     no statistic): 1.05 (1 + 5/sqrt(m)) sqrt(v^2 + 1/3).
// No less than 1/256: smaller sizes are not tried.
double stated_limit(const Seeable& s);

}  // namespace lockstep
