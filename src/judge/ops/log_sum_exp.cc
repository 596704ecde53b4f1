// ln sum exp(s), of the scores s of the n keys of a share:
// B = out + lambda ds + (lambda sqrt(n) + 4 (S + ln n) + 8) u, ds = sqrt(head_dim) u S + 4 u
// V = ulp^2/12 + es^2 + ((2 + S + ln n) u)^2 + (w(n) u)^2
//
// S = max_j scale sum|q k_j|. The mean of what the scores are off by, under the weights, is what
// the result is off by: es = (w(head_dim) + 1) u S + 4 u at most, as of attention. A sum of n
// terms of one sign is off by w(n) u of itself. The largest score and the logarithm, which are
// added, are S and ln n at most, and kernels that work to the base 2 multiply once more.
#include <algorithm>
#include <cmath>

#include "src/judge/ops/errors.h"

namespace lockstep {
namespace {

bool is_full(const Exact& e) {
  const size_t n = e.want.size();
  return e.score.size() == n && e.steps.empty() &&
         (n == 0 || (!e.row_terms.empty() && n % e.row_terms.size() == 0 && e.terms > 0));
}

JudgedOp::InnerError inner(const Exact& e, size_t i, DType) {
  const size_t each = e.want.size() / e.row_terms.size();
  const double n = std::max(1.0, e.row_terms[i / each]), score = e.score[i];
  const auto width = static_cast<double>(e.terms);
  const double ds = std::sqrt(width) * u * score + 4 * u;
  const double es = (walk_of(width) + 1) * u * score + 4 * u;
  const double sizes = score + std::log(n);
  return {kLambda * ds + (kLambda * std::sqrt(n) + 4 * sizes + 8) * u,
          squared(es) + squared((2 + sizes) * u) + squared(walk_of(n) * u)};
}

// Scores and their sum may be off for all rows alike, by what an accumulator truncates.
double gain(const Exact& e) {
  double most = static_cast<double>(e.terms);
  for (const double n : e.row_terms) most = std::max(most, n);
  return truncation_gain(most) + 0x1p-21;
}

}  // namespace

const JudgedOp kJudgedLogSumExp = {.kind = OpKind::log_sum_exp,
                                   .is_full = is_full,
                                   .inner = each<inner>,
                                   .gain = gain,
                                   .is_calibrated = false,
                                   .may_be_empty = true};

}  // namespace lockstep
