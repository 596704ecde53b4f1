#include "src/judge/budget.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"

namespace lockstep {
namespace {

// One element's share beyond the rounding of the output: added to B, and squared to V.
struct Inner {
  double limit = 0;
  double deviation_squared = 0;
  double shared = 0;  // of deviation_squared
};

double squared(double x) { return x * x; }

Inner linear(const Exact& e, size_t i) {
  const double walk = std::sqrt(static_cast<double>(e.terms)) * kAccumulatorRoundoff;
  return {kLambda * walk * e.magnitude[i], squared(0.3 * walk * e.magnitude[i])};
}

Inner norm(const Exact& e, size_t i) {
  const double half_walk = std::sqrt(static_cast<double>(e.terms)) / 2;
  const double size = kAccumulatorRoundoff * std::fabs(e.want[i]);
  return {(kLambda * half_walk + 8) * size, squared(half_walk * size)};
}

// The cos and sin that both sides read are data; what differs is their own fp32 products, and the
// angle where a kernel makes them itself.
Inner rope(const Exact& e, size_t i) {
  return {(4 + 2 * e.angle[i]) * kAccumulatorRoundoff * e.magnitude[i],
          squared(0.6 * kAccumulatorRoundoff * e.x1c_x2s[i])};
}

Inner silu_mul(const Exact& e, size_t i) {
  const double size = kAccumulatorRoundoff * std::fabs(e.want[i]);
  return {16 * size, squared(3 * size)};
}

// An exp of x is off by |x| u for the rounding of x and some ulp of its own, both in the numerator
// and, by their mean, in the sum of n.
Inner softmax(const Exact& e, size_t i) {
  const double size = kAccumulatorRoundoff * std::fabs(e.want[i]);
  const double walk = std::sqrt(static_cast<double>(e.terms));
  return {(16 + 2 * e.magnitude[i] + kLambda * walk) * size,
          squared((3 + 0.3 * (e.magnitude[i] + walk)) * size)};
}

Inner attention(const Exact& e, size_t i) {
  const auto dim = static_cast<size_t>(e.shape.last());
  const auto heads = static_cast<size_t>(e.shape[1]);
  const double score = e.score[i / dim];
  const double n = e.row_terms[i / dim / heads];
  const double ds =
      std::sqrt(static_cast<double>(dim)) * kAccumulatorRoundoff * score + 4 * kAccumulatorRoundoff;
  const double walk = std::sqrt(n) * kAccumulatorRoundoff * e.magnitude[i];
  // One wrong score moves a whole head, and so do the two roundings of its division by the sum.
  const double shared =
      squared(ds * e.spread[i]) + squared(kAccumulatorRoundoff * std::fabs(e.want[i]));
  return {2 * kLambda * ds * e.spread[i] + kLambda * walk, shared + squared(0.3 * walk), shared};
}

Inner nothing(const Exact&, size_t) { return {}; }

void check_sizes(OpKind op, const Exact& e) {
  const size_t n = e.want.size();
  bool ok = static_cast<int64_t>(n) == e.shape.count();
  const bool reduces = op == OpKind::linear || op == OpKind::expert_linear ||
                       op == OpKind::weighted_sum || op == OpKind::softmax;
  if (reduces) ok = ok && e.magnitude.size() == n;
  if (op == OpKind::rope)
    ok = ok && e.magnitude.size() == n && e.angle.size() == n && e.x1c_x2s.size() == n;
  if (op == OpKind::attention) {
    ok = ok && e.shape.rank() == 3 && e.magnitude.size() == n && e.spread.size() == n;
    ok = ok && static_cast<int64_t>(e.row_terms.size()) == e.shape[0];
    ok = ok && static_cast<int64_t>(e.score.size()) == e.shape[0] * e.shape[1];
  }
  check(
      ok,
      "the oracle's answer of shape {} lacks magnitudes that its budget needs: fill the fields of "
      "Exact that oracle.h lists for the op",
      e.shape.text());
}

double gain_of(OpKind op, int64_t terms) {
  switch (op) {
    case OpKind::attention:
      return 1e-4;
    case OpKind::silu_mul:
    case OpKind::softmax:
      return 0x1p-22;
    default:
      return std::max(1.0, static_cast<double>(terms) / 16) * 0x1p-23;
  }
}

double misrounds_of(DType dtype) {
  if (dtype == DType::bf16) return 0.02;
  return dtype == DType::f16 ? 0.10 : 1;
}

template <typename InnerOf>
Budget fill(OpKind op, const Exact& exact, DType dtype, InnerOf inner_of) {
  Budget budget{.gain = gain_of(op, exact.terms), .misrounds = misrounds_of(dtype)};
  if (!exact.spread.empty()) budget.shared.resize(exact.want.size());
  budget.limit.resize(exact.want.size());
  budget.variance.resize(exact.want.size());
  for (size_t i = 0; i < exact.want.size(); ++i) {
    const double spacing = ulp(exact.want[i], dtype);
    const Inner inner = inner_of(exact, i);
    budget.limit[i] = spacing / 2 + inner.limit;
    budget.variance[i] = spacing * spacing / 12 + inner.deviation_squared;
    if (!budget.shared.empty()) budget.shared[i] = inner.shared;
  }
  return budget;
}

}  // namespace

Budget budget_of(OpKind op, const Exact& exact, DType dtype) {
  check_sizes(op, exact);
  switch (op) {
    case OpKind::linear:
    case OpKind::expert_linear:
    case OpKind::weighted_sum:
      return fill(op, exact, dtype, linear);
    case OpKind::norm:
      return fill(op, exact, dtype, norm);
    case OpKind::rope:
      return fill(op, exact, dtype, rope);
    case OpKind::silu_mul:
      return fill(op, exact, dtype, silu_mul);
    case OpKind::softmax:
      return fill(op, exact, dtype, softmax);
    case OpKind::attention:
      return fill(op, exact, dtype, attention);
    case OpKind::gather:
    case OpKind::add:
      return fill(op, exact, dtype, nothing);
    case OpKind::cache:
    case OpKind::argmax:
    case OpKind::top_k:
      break;
  }
  fail("a budget was asked for an op that copies or compares: such ops are exact by their inputs");
}

}  // namespace lockstep
