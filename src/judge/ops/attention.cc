// softmax(q K^T) V:  B = out + 2 lambda ds sum p|v-o| + lambda sqrt(n) u sum p|v|,
// ds = sqrt(head_dim) u max_j scale sum|q k_j| + 4 u
// V = ulp^2/12 + es^2 sum p^2 (v-o)^2 + (m u o)^2 + 2 u^2 n (o^2/9 + sum p^2 v^2 / 6)
//
// The score of a key is off by es = (w(head_dim) + 1) u S + 4 u, S = max_j scale sum|q k_j|, each
// key by an error of its own: its weight p turns the head by p (v - o). The whole head is off by m
// = 2 + S + ln n: a division, a last product, and the merge of parts, whose log-sum-exp of S + ln n
// at most is rounded once. These two are shared. The last term is a sum of n products p v in order:
// it walks by Q = sum p^2 v^2 and drifts to o, so that its square after k of them is
// (k/n o)^2 + k/n Q.
//
// hf: each p has a rounding of its own too, T = u_d sqrt(sum p^2 v^2), u_d the dtype's unit
// roundoff: B + 0.6 lambda T, V + T^2/4, of which T^2/4 sqrt(overlap) is shared. A rounding of p is
// uniform within ulp(p)/2, its variance between u_d^2 p^2/12, under a power of two, and u_d^2
// p^2/3, above one; .18 on average. Of p under the least normal number of fp16 ulp(p) is that of
// this number: the oracle gives the sum of squares of p that are as large as twice that, 2^-13. Of
// p that are all nearly equal the roundings are one and the same, up to u_d o: it gives 4 o^2.
//
// partial_attention: the same over each share of the keys, and of its own sums. Its results are
// fp32, so that no rounding of them hides those of p, and V has the largest variance that these may
// have: T^2/3 instead of T^2/4.
//
// flash_fp16: the sums over the keys so far, s_j, are rounded one by one, as the sums of parts of
// other sizes would be: T = u_fp16 sqrt(sum s_j^2), twice that where they are scaled as the largest
// score grows; the oracle gives 0.6 lambda T as ties and T^2/4 as their squares.
#include <algorithm>
#include <cmath>

#include "src/judge/ops/errors.h"

namespace lockstep {
namespace {

using enum RoundingContract;

bool is_full(const Exact& e) {
  if (e.shape.rank() < 3) return false;
  const size_t n = e.want.size(), heads = n / std::max<int64_t>(1, e.shape.last());
  const int64_t sums = e.shape.rank() == 3 ? e.shape[0] : e.shape[0] * e.shape[1];
  return has_magnitude(e) && e.spread.size() == n && e.spread_squares.size() == n &&
         e.weighted_squares.size() == n && std::ssize(e.row_terms) == sums &&
         e.score.size() == heads && (!rounds_weights(e.contract) || e.overlap.size() == heads);
}

JudgedOp::InnerError inner_exact_weights(const Exact& e, size_t i) {
  const size_t dim = e.shape.last(), of_sum = e.want.size() / e.row_terms.size();
  const double score = e.score[i / dim], n = std::max(1.0, e.row_terms[i / of_sum]);
  const auto width = static_cast<double>(dim);
  const double o = std::fabs(e.want[i]);
  const double ds = std::sqrt(width) * u * score + 4 * u;
  const double es = (walk_of(width) + 1) * u * score + 4 * u;
  const double shared =
      squared(es) * e.spread_squares[i] + squared((2 + score + std::log(n)) * u * o);
  const double sum = 2 * u * u * n * (o * o / 9 + e.weighted_squares[i] / 6);
  return {2 * kLambda * ds * e.spread[i] + kLambda * std::sqrt(n) * u * e.magnitude[i],
          shared + sum, shared};
}

// part: the variance of roundings of weights, as a share of T^2.
JudgedOp::InnerError with_weights(const Exact& e, size_t i, DType dtype, double part) {
  JudgedOp::InnerError error = inner_exact_weights(e, i);
  if (!rounds_weights(e.contract)) return error;
  const double weights = unit_roundoff(dtype) * std::sqrt(e.weighted_squares[i]);
  const double variance = part * squared(weights);
  const size_t head = i / e.shape.last();
  error.limit += 0.6 * kLambda * weights;
  error.variance += variance;
  error.shared += variance * std::sqrt(e.overlap[head]);
  return error;
}

JudgedOp::InnerError inner(const Exact& e, size_t i, DType dtype) {
  return with_weights(e, i, dtype, 0.25);
}

JudgedOp::InnerError inner_of_share(const Exact& e, size_t i, DType dtype) {
  return with_weights(e, i, dtype, 1.0 / 3);
}

// An accumulator that truncates its keys, and 2^-21 more for an exponential that is off by a few
// ulp. Where weights are rounded to the dtype, kernels take exponentials of three digits for it,
// 1.07e-4 off where the argument is 0 (Malossi et al. 2015; PyTorch's on CPUs): the largest weight
// is stored as 1 and summed as less, 2^-13 at most.
double gain(const Exact& e) {
  double most = 1;
  for (const double n : e.row_terms) most = std::max(most, n);
  return truncation_gain(most) + (rounds_weights(e.contract) ? 0x1p-13 : 0x1p-21);
}

// n keys with scores of S, and head_dim d: S (0.34 sqrt(d) + 2) + 6 + ln n on average.
JudgedOp::RightKernel right_kernel(const JudgedOp::Sizes& sizes) {
  const double width = std::sqrt(sizes.head_dim);
  return {sizes.scores * (0.34 * width + 2) + 6 + std::log(sizes.terms),
          16 * (sizes.scores * width + 4) + 8 * std::sqrt(sizes.terms)};
}

// Scores are sums of products that cancel, and exp() raises what they are off.
double spread(double) { return 0x1p11; }

}  // namespace

std::vector<RoundingContract> tried_of_attention(const ContractTraits&) {
  return {fused, eager, eager_query_rounded, hf, query_rounded};
}

std::vector<RoundingContract> declared_of_attention(const ContractTraits& traits) {
  if (traits.dtype == DType::f32) return {operands_fp16, cache_fp16, flash_fp16};
  return {scores_rounded};
}

bool knows_steps_of_attention(RoundingContract contract) { return !rounds_weights(contract); }

const JudgedOp kJudgedAttention = {.kind = OpKind::attention,
                                   .tried = tried_of_attention,
                                   .declared = declared_of_attention,
                                   .is_full = is_full,
                                   .inner = each<inner>,
                                   .gain = gain,
                                   .knows_steps = knows_steps_of_attention,
                                   .has_shared = true,
                                   .meets_borders = true,
                                   .right_kernel = right_kernel,
                                   .spread = spread,
                                   .may_lose_weights = true};

const JudgedOp kJudgedPartialAttention = {.kind = OpKind::partial_attention,
                                          .tried = tried_of_attention,
                                          .declared = declared_of_attention,
                                          .is_full = is_full,
                                          .inner = each<inner_of_share>,
                                          .gain = gain,
                                          .knows_steps = knows_steps_of_attention,
                                          .has_shared = true,
                                          .is_calibrated = false,
                                          .right_kernel = right_kernel,
                                          .spread = spread,
                                          .may_lose_weights = true};

}  // namespace lockstep
