#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "probes/points.h"
#include "src/judge/oracle.h"
#include "src/stats/roundoff.h"
#include "traces/trace.h"

namespace lockstep {

// Neighbours in Exact::want, such as those of a row.
struct Elements {
  size_t first = 0;
  size_t count = std::dynamic_extent;  // all that follow
};

// What one correct evaluation may differ from Exact::want, per element, in the unit of the tensor.
// Limit and variance are above zero wherever the exact result is finite.
struct Budget {
  std::vector<double> limit;  // B: no correct kernel is further away
  // V: expected square of the difference, uniform rounding included. Infinity: what the element is
  // off by, others elsewhere are too; it is held to B alone.
  std::vector<double> variance;
  // The part of V that all elements of one head and row have in common (of one row, where there are
  // no heads), because one wrong score or scale moves them together. Empty: they are independent.
  std::vector<double> shared;
  // The part of B for what is no normal number of fp32 on the way, which kernels may make 0. Empty:
  // the op makes no such numbers.
  std::vector<double> underflow;
  // How likely it is, at most, that a correct kernel stores another number than `want` rounded: an
  // error of standard deviation s before the store crosses the border between two numbers with a
  // chance of E|error| / ulp <= s / ulp; and what a rounding on the way may do of itself.
  std::vector<double> misround;
  double gain = 0;       // relative error that all elements may have in common
  double misrounds = 1;  // the most of `misround`, roundings on the way left out
};

// The budget of a result in `dtype` of a kernel that rounds as Exact::contract says. Formulas after
// Higham and Mary 2019 (probabilistic bounds); measured on CPU and GPU libraries the largest
// difference stays under B in every dtype.
//   out = ulp(|want| + the rest of B) / 2, u = kAccumulatorRoundoff, w(n) = 0.34 sqrt(n)
//   (roundoff.h)
//   linear     B = out + lambda sqrt(n) u S            V = ulp^2/12 + (w(n) u S)^2
//   expert_linear, weighted_sum  as linear
//   norm       B = out + (lambda sqrt(n)/2 + 8) u |o|  V = ulp^2/12 + (s u o)^2, all of it shared,
//              s = w(n)/2 + 3: the root halves the relative error of the mean square, which is a
//              sum of one sign; its own 2 ulp and the product are the rest. Of sums of equal
//              numbers, which round alike, B has room for three times as much
//   softmax    B = out + (16 + 2 magnitude + lambda sqrt(n)) u |o| + 2^-126
//              V = ulp^2/12 + ((3 + 0.3 (magnitude + sqrt(n))) u o)^2 + 2^-252, all shared
//   rope       B = out + 4 u (|x1|+|x2| + a |x2 c - x1 s|) + (4 a u)^2 |o| / 2
//              V = ulp^2/12 + (0.85 u)^2 ((x1 c)^2+(x2 s)^2) + d^2 (x2 c - x1 s)^2 + 3/4 d^4 o^2,
//              d^2 = 3 (a u)^2
//              c, s and the products round once each: u^2 (1/3 + 1/3) of each term. a: what the
//              angle may be off, in units of u; it turns the pair, so it shows in x2 c - x1 s, and
//              where that is 0 in the curve of o: the mean of d^4 is three times that of d^2
//              squared. A kernel may make its own angles, so this is so where the tables were seen
//              too. A power of a library is off by 2 u, the division and the product with the
//              position by one each. What a frequency is off by, all positions share: of five bases
//              and six sizes of heads the worst is 1.42 u, which with a third of u^2 for the
//              product is 2.4 of these 3
//   angles     B = out + 4 (a |t| + |o|) u + (4 a u)^2 |o| / 2
//              V = ulp^2/12 + (u o)^2 + d^2 t^2 + 3/4 d^4 o^2, t the derivative by the angle: of a
//              cosine its sine
//   silu_mul   B = out + 16 u |o| + f                  V = ulp^2/12 + (3 u o)^2 + f^2
//              f = 88 2^-126 |up|: where the sigmoid of a gate is below 2^-126, its silu is below
//              88 2^-126, and 0 in kernels whose 1 + exp(-gate) overflows
//   attention  B = out + 2 lambda ds sum p|v-o| + lambda sqrt(n) u sum p|v|,
//              ds = sqrt(head_dim) u max_j scale sum|q k_j| + 4 u
//              V = ulp^2/12 + es^2 sum p^2 (v-o)^2 + (m u o)^2 + 2 u^2 n (o^2/9 + sum p^2 v^2 / 6)
//              The score of a key is off by es = (w(head_dim) + 1) u S + 4 u, S = max_j scale sum|q
//              k_j|, each key by an error of its own: its weight p turns the head by p (v - o). The
//              whole head is off by m = 2 + S + ln n: a division, a last product, and the merge of
//              parts, whose log-sum-exp of S + ln n at most is rounded once. These two are shared.
//              The last term is a sum of n products p v in order: it walks by Q = sum p^2 v^2 and
//              drifts to o, so that its square after k of them is (k/n o)^2 + k/n Q
//              hf: each p has a rounding of its own too, T = u_d sqrt(sum p^2 v^2), u_d the dtype's
//              unit roundoff: B + 0.6 lambda T, V + T^2/4, of which T^2/4 sqrt(overlap) is shared.
//              A rounding of p is uniform within ulp(p)/2, its variance between u_d^2 p^2/12, under
//              a power of two, and u_d^2 p^2/3, above one; .18 on average
//   gather, add  B = out, V = ulp^2/12 (held to the bits; B says how far off one is)
// Roundings on the way (Exact::steps, Exact::ties) are those of the exact chain, and no tolerance,
// but where its value lies so near the border of two numbers that fp32 cannot tell: a step z of
// slope f = d want / d z adds ulp(z) |f| to B there, chance (ulp(z) f)^2 to V and chance to
// misround (roundoff.h, near_tie). Of rope the step is a cosine or a sine, whose product with f hf
// rounds next: that may turn as well, by ulp(z f) more. All heads and layers read one table, so
// that its ties are no independent errors: V is infinite there. A kernel has z to within
//   norm  (lambda sqrt(n)/2 + 8) u |z|, usually s u |z|         silu_mul  16 u |z|, usually 3 u |z|
//   rope  (3 + 4 a |sin|/|cos|) u |cos|, of cos, and of sin alike, usually a third
//   linear (bias_after_store)  lambda sqrt(n) u S, usually w(n) u S
// An accumulator that truncates 16 products at a time is 2^-23 too small with each: gain = max(1,
// n/16) 2^-23, of attention's keys too, and of these 2^-21 more for an exponential that is off by a
// few ulp; norm and silu_mul 2^-21 and softmax 2^-22 for theirs; rope 2^-22. Under hf, where
// weights are rounded to the dtype, kernels take exponentials of three digits for it, 1.07e-4 off
// where the argument is 0 (Malossi et al. 2015; PyTorch's on CPUs): the largest weight is stored as
// 1 and summed as less, 2^-13 at most. misrounds: bf16 .02, fp16 .10, twice and more of what matrix
// products on CPUs and GPUs have; no limit in fp32. Throws Error when `exact` lacks a magnitude
// that `op` needs, or some of the elements. Several threads may ask at once.
Budget budget_of(OpKind op, const Exact& exact, DType dtype, Elements elements = {});

}  // namespace lockstep
