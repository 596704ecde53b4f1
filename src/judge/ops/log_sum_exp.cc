// ln sum exp(s), of the scores s of the n keys of a share:
// B = out + lambda ds + (lambda sqrt(n) + 4 (S + ln n) + 8) u, ds = sqrt(head_dim) u S + 4 u
// V = ulp^2/12 + es^2 + ((2 + S + ln n) u)^2 + (w(n) u)^2
//
// S = max_j scale sum|q k_j|. The mean of what the scores are off by, under the weights, is what
// the result is off by: es = (w(head_dim) + 1) u S + 4 u at most, as of attention. A sum of n
// terms of one sign is off by w(n) u of itself. The largest score and the logarithm, which are
// added, are S and ln n at most, and kernels that work to the base 2 multiply once more.
//
// hf: a kernel may sum the weights as it has rounded them for P V (FlashInfer, prefill.cuh: the row
// sums of its fp16 weights are products with ones): B + 0.6 lambda T, V + T^2/3, T = u_d sqrt(sum
// p^2), as of a share in attention.cc.
#include <algorithm>
#include <cmath>

#include "src/judge/ops/errors.h"

namespace lockstep {
namespace {

bool is_full(const Exact& e) {
  const size_t n = e.want.size();
  return e.score.size() == n && e.steps.empty() &&
         (!rounds_weights(e.contract) || e.weighted_squares.size() == n) &&
         (n == 0 || (!e.row_terms.empty() && n % e.row_terms.size() == 0 && e.terms > 0));
}

JudgedOp::InnerError inner(const Exact& e, size_t i, DType dtype) {
  const size_t each = e.want.size() / e.row_terms.size();
  const double n = std::max(1.0, e.row_terms[i / each]), score = e.score[i];
  const auto width = static_cast<double>(e.terms);
  const double ds = std::sqrt(width) * u * score + 4 * u;
  const double es = (walk_of(width) + 1) * u * score + 4 * u;
  const double sizes = score + std::log(n);
  const double weights =
      rounds_weights(e.contract) ? unit_roundoff(dtype) * std::sqrt(e.weighted_squares[i]) : 0;
  return {kLambda * ds + (kLambda * std::sqrt(n) + 4 * sizes + 8) * u + 0.6 * kLambda * weights,
          squared(es) + squared((2 + sizes) * u) + squared(walk_of(n) * u) + squared(weights) / 3};
}

// Scores and their sum may be off for all rows alike, by what an accumulator truncates. Where
// weights are rounded, by what attention.cc has of exponentials of three digits.
double gain(const Exact& e) {
  double most = static_cast<double>(e.terms);
  for (const double n : e.row_terms) most = std::max(most, n);
  return truncation_gain(most) + (rounds_weights(e.contract) ? 0x1p-13 : 0x1p-21);
}

}  // namespace

const JudgedOp kJudgedLogSumExp = {.kind = OpKind::log_sum_exp,
                                   .tried = tried_of_attention,
                                   .declared = declared_of_attention,
                                   .is_full = is_full,
                                   .inner = each<inner>,
                                   .gain = gain,
                                   .knows_steps = knows_steps_of_attention,
                                   .is_calibrated = false,
                                   .may_be_empty = true};

}  // namespace lockstep
