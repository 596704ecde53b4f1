#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "probes/points.h"
#include "src/judge/oracle.h"
#include "traces/trace.h"

namespace lockstep {

// Neighbours in Exact::want, such as those of a row.
struct Elements {
  size_t first = 0;
  size_t count = std::dynamic_extent;  // all that follow
};

// What one correct evaluation may differ from the exact result, per element, in the unit of the
// tensor. Both are above zero wherever the exact result is finite.
struct Budget {
  std::vector<double> limit;     // B: no correct kernel is further away
  std::vector<double> variance;  // V: expected square of the difference, uniform rounding included
  // The part of V that all elements of one head and row have in common, because one wrong score
  // moves them together. Empty: the elements are independent.
  std::vector<double> shared;
  // The part of B for what is no normal number of fp32 on the way, which kernels may make 0. Empty:
  // the op makes no such numbers.
  std::vector<double> underflow;
  double gain = 0;       // relative error that all elements may have in common
  double misrounds = 1;  // share of elements that may be another than the exact result rounded
};

// B is exceeded by chance about once in 1e15 correct elements per kLambda = 8 standard deviations
// of an accumulation's random walk; over all comparisons of a run the risk stays about 1e-3.
inline constexpr double kLambda = 8;
// Unit roundoff of the accumulators: every op here sums in fp32.
inline constexpr double kAccumulatorRoundoff = 0x1p-24;
// Unit roundoff of tf32: 11 bits of a product's operands are left.
inline constexpr double kTf32Roundoff = 0x1p-11;

// The least normal number of fp32.
inline constexpr double kLeastNormal = 0x1p-126;

// How the products of linear ops are summed: of operands as they are, or of operands rounded to
// tf32, in fp32 either way. bf16 and fp16 have no more bits than tf32, so that only fp32 differs.
enum class Accumulator : uint8_t { fp32, tf32 };
Accumulator accumulator_from(const std::string& name);  // throws Error on another name

// The budget of a result in `dtype` of a kernel that rounds as `schema` says: fused, once at the
// store, or to `dtype` on the way too. Formulas after Higham and Mary 2019 (probabilistic bounds);
// measured on CPU and GPU libraries the largest difference stays under B in every dtype.
//   out = ulp(want) / 2, u = kAccumulatorRoundoff
//   linear     B = out + lambda sqrt(n) u S            V = ulp^2/12 + (0.3 sqrt(n) u S)^2
//   norm       B = out + (lambda sqrt(n)/2 + 8) u |o|  V = ulp^2/12 + (sqrt(n)/2 u o)^2
//              of tf32 operands, T = 1.2 2^-11 sqrt(sum a^2 w^2): B + lambda T, V + T^2 (the
//              root mean square on an H200 is half of T, the largest in 1e6 elements 2.6 T)
//   expert_linear, weighted_sum  as linear, the second always of operands as they are
//   softmax    B = out + (16 + 2 magnitude + lambda sqrt(n)) u |o| + 2^-126
//              V = ulp^2/12 + ((3 + 0.3 (magnitude + sqrt(n))) u o)^2 + 2^-252
//   rope       B = out + (4 + 2 angle) u (|x1|+|x2|)   V = ulp^2/12 + (0.6 u)^2 ((x1 c)^2+(x2 s)^2)
//   silu_mul   B = out + 16 u |o| + f                  V = ulp^2/12 + (3 u o)^2 + f^2
//              f = 88 2^-126 |up|: where the sigmoid of a gate is below 2^-126, its silu is below
//              88 2^-126, and 0 in kernels whose 1 + exp(-gate) overflows
//   attention  B = out + 2 lambda ds sum p|v-o| + lambda sqrt(n) u sum p|v|,
//              ds = sqrt(head_dim) u max_j scale sum|q k_j| + 4 u
//              V = ulp^2/12 + (ds sum p|v-o|)^2 + (0.3 sqrt(n) u sum p|v|)^2, the second term
//              shared
//              of weights p that are rounded to dtype too (hf, eager), T = u_d sqrt(sum p^2 v^2),
//              u_d the dtype's unit roundoff: B + 0.6 lambda T, V + T^2/4, of which T^2/4
//              sqrt(overlap) shared. A rounding of p is uniform within ulp(p)/2, its variance
//              between u_d^2 p^2/12, under a power of two, and u_d^2 p^2/3, above one; .18 on
//              average. It moves the whole head, each element by its v: Exact::overlap says how
//              alike
//   gather, add  B = out, V = ulp^2/12 (held to the bits; B says how far off one is)
// An accumulator that truncates 16 products at a time is 2^-23 too small with each: gain = max(1,
// n/16) 2^-23; attention 1e-4, for its exponential; silu_mul, softmax 2^-22, for theirs; rope
// 2^-23; tf32 operands 2^-10 more. misrounds: bf16 .02, fp16 .10, twice and more of what matrix
// products on CPUs and GPUs have; no limit in fp32. Throws Error when `exact` lacks a magnitude
// that `op` needs, or some of the elements. Several threads may ask at once.
Budget budget_of(OpKind op, const Exact& exact, DType dtype, Schema schema = Schema::fused,
                 Accumulator accumulator = Accumulator::fp32, Elements elements = {});

// Whether the op's budget needs Exact::squares.
bool rounds_operands(OpKind op, DType dtype, Accumulator accumulator);

// The schemas that differ for the op, strictest first; {fused} when all are the same.
std::span<const Schema> schemas_of(OpKind op);

}  // namespace lockstep
