#include "src/judge/budget.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/check.h"

namespace lockstep {
namespace {

// One element's share beyond the rounding of the output: added to B, and squared to V.
struct Inner {
  double limit = 0;
  double deviation_squared = 0;
  double shared = 0;     // of deviation_squared
  double underflow = 0;  // of limit
};

double squared(double x) { return x * x; }

Inner linear(const Exact& e, size_t i) {
  const double walk = std::sqrt(static_cast<double>(e.terms)) * kAccumulatorRoundoff;
  return {kLambda * walk * e.magnitude[i], squared(0.3 * walk * e.magnitude[i])};
}

// The roundings of the operands are independent of the sum's.
Inner tf32_linear(const Exact& e, size_t i) {
  const Inner sum = linear(e, i);
  const double operands = 1.2 * kTf32Roundoff * std::sqrt(e.squares[i]);
  return {sum.limit + kLambda * operands, sum.deviation_squared + squared(operands)};
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
  const double underflow = 88 * kLeastNormal * std::fabs(e.factor[i]);
  return {16 * size + underflow, squared(3 * size) + squared(underflow), 0, underflow};
}

// An exp of x is off by |x| u for the rounding of x and some ulp of its own, both in the numerator
// and, by their mean, in the sum of n.
Inner softmax(const Exact& e, size_t i) {
  const double size = kAccumulatorRoundoff * std::fabs(e.want[i]);
  const double walk = std::sqrt(static_cast<double>(e.terms));
  return {(16 + 2 * e.magnitude[i] + kLambda * walk) * size + kLeastNormal,
          squared((3 + 0.3 * (e.magnitude[i] + walk)) * size) + squared(kLeastNormal), 0,
          kLeastNormal};
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

// Roundings on the way: half an ulp each in B, ulp^2/12 each in V.
class Roundings {
 public:
  explicit Roundings(DType dtype) : dtype_(dtype) {}
  // Of x, which is then multiplied with `factor`.
  void add(double x, double factor = 1) {
    const double half = std::fabs(factor) * ulp(x, dtype_) / 2;
    sum_.limit += half;
    sum_.deviation_squared += squared(half) / 3;
  }
  void add(const Inner& other) {
    sum_.limit += other.limit;
    sum_.deviation_squared += other.deviation_squared;
    sum_.shared += other.shared;
  }
  const Inner& sum() const { return sum_; }

 private:
  DType dtype_;
  Inner sum_;
};

// What a chain of ops adds.
Inner chain(OpKind op, const Exact& e, size_t i, DType dtype, Schema schema) {
  Roundings roundings(dtype);
  if (op == OpKind::norm || op == OpKind::silu_mul) roundings.add(e.inner[i], e.factor[i]);
  if (op == OpKind::rope) {
    roundings.add(e.x1[i] * e.cos[i]);
    roundings.add(e.x2[i] * e.sin[i]);
    roundings.add(e.cos[i], e.x1[i]);
    roundings.add(e.sin[i], e.x2[i]);
  }
  if (op == OpKind::weighted_sum)
    for (int64_t k = 0; k < 2 * e.terms; ++k) roundings.add(e.magnitude[i]);
  if (op == OpKind::attention) {
    const double weights = unit_roundoff(dtype) * std::sqrt(e.weighted_squares[i]);
    const double variance = squared(weights) / 4;
    const size_t head = i / static_cast<size_t>(e.shape.last());
    roundings.add(Inner{0.6 * kLambda * weights, variance, variance * std::sqrt(e.overlap[head])});
    if (schema == Schema::eager) {
      const double off = ulp(e.score[head], dtype) * e.spread[i];
      roundings.add(Inner{2 * kLambda * off, squared(off), squared(off)});
    }
  }
  return roundings.sum();
}

bool fits_chain(OpKind op, const Exact& e) {
  const size_t n = e.want.size();
  const auto full = [n](const Numbers& values) { return values.size() == n; };
  if (op == OpKind::norm || op == OpKind::silu_mul) return full(e.inner) && full(e.factor);
  if (op == OpKind::rope) return full(e.x1) && full(e.x2) && full(e.cos) && full(e.sin);
  return op != OpKind::attention ||
         (full(e.weighted_squares) && e.overlap.size() == e.score.size());
}

void check_sizes(OpKind op, const Exact& e, Elements elements, Schema schema, bool squares) {
  const size_t n = e.want.size();
  if (elements.first > n || elements.count > n - elements.first)
    fail("budgets of {} elements from {} on were asked for, of a result of {}: ask for some of it",
         elements.count, elements.first, n);
  bool ok = static_cast<int64_t>(n) == e.shape.count() && (!squares || e.squares.size() == n);
  const bool reduces = op == OpKind::linear || op == OpKind::expert_linear ||
                       op == OpKind::weighted_sum || op == OpKind::softmax;
  if (reduces) ok = ok && e.magnitude.size() == n;
  if (op == OpKind::silu_mul) ok = ok && e.factor.size() == n;
  if (op == OpKind::rope)
    ok = ok && e.magnitude.size() == n && e.angle.size() == n && e.x1c_x2s.size() == n;
  if (op == OpKind::attention) {
    ok = ok && e.shape.rank() == 3 && e.magnitude.size() == n && e.spread.size() == n;
    ok = ok && static_cast<int64_t>(e.row_terms.size()) == e.shape[0];
    ok = ok && static_cast<int64_t>(e.score.size()) == e.shape[0] * e.shape[1];
  }
  if (!ok || (schema != Schema::fused && !fits_chain(op, e)))
    fail(
        "the oracle's answer of shape {} lacks magnitudes that its budget needs: fill the fields "
        "of Exact that oracle.h lists for the op",
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
Budget fill(OpKind op, const Exact& exact, Elements elements, DType dtype, Schema schema,
            InnerOf inner_of) {
  const bool chained = schema != Schema::fused && schemas_of(op).size() > 1;
  Budget budget{.gain = gain_of(op, exact.terms), .misrounds = misrounds_of(dtype)};
  if (chained) budget.gain += 2 * unit_roundoff(dtype), budget.misrounds = 1;
  if (!exact.spread.empty()) budget.shared.reserve(elements.count);
  const bool underflows = op == OpKind::silu_mul || op == OpKind::softmax;
  budget.limit.reserve(elements.count);
  budget.variance.reserve(elements.count);
  for (size_t i = elements.first; i < elements.first + elements.count; ++i) {
    const double spacing = ulp(exact.want[i], dtype);
    Inner inner = inner_of(exact, i);
    if (chained) {
      const Inner more = chain(op, exact, i, dtype, schema);
      inner = {inner.limit + more.limit, inner.deviation_squared + more.deviation_squared,
               inner.shared + more.shared, inner.underflow};
    }
    budget.limit.push_back(spacing / 2 + inner.limit);
    budget.variance.push_back(spacing * spacing / 12 + inner.deviation_squared);
    if (!exact.spread.empty()) budget.shared.push_back(inner.shared);
    if (underflows) budget.underflow.push_back(inner.underflow);
  }
  return budget;
}

}  // namespace

std::span<const Schema> schemas_of(OpKind op) {
  static constexpr std::array kAll = {Schema::fused, Schema::hf, Schema::eager};
  const bool chain = op == OpKind::norm || op == OpKind::rope || op == OpKind::silu_mul ||
                     op == OpKind::weighted_sum;
  const size_t count = op == OpKind::attention ? 3 : chain ? 2 : 1;
  return std::span(kAll).first(count);
}

Accumulator accumulator_from(const std::string& name) {
  if (name == "fp32") return Accumulator::fp32;
  check(name == "tf32", "'{}' is no accumulator of linear ops: use fp32 or tf32", name);
  return Accumulator::tf32;
}

bool rounds_operands(OpKind op, DType dtype, Accumulator accumulator) {
  const bool linear = op == OpKind::linear || op == OpKind::expert_linear;
  return linear && dtype == DType::f32 && accumulator == Accumulator::tf32;
}

Budget budget_of(OpKind op, const Exact& exact, DType dtype, Schema schema, Accumulator accumulator,
                 Elements elements) {
  if (elements.count == std::dynamic_extent)
    elements.count = exact.want.size() - std::min(elements.first, exact.want.size());
  const bool tf32 = rounds_operands(op, dtype, accumulator);
  check_sizes(op, exact, elements, schema, tf32);
  if (tf32) {
    Budget budget = fill(op, exact, elements, dtype, schema, tf32_linear);
    budget.gain += 2 * kTf32Roundoff;  // one operand may be in all products, the same in all rows
    return budget;
  }
  switch (op) {
    case OpKind::linear:
    case OpKind::expert_linear:
    case OpKind::weighted_sum:
      return fill(op, exact, elements, dtype, schema, linear);
    case OpKind::norm:
      return fill(op, exact, elements, dtype, schema, norm);
    case OpKind::rope:
      return fill(op, exact, elements, dtype, schema, rope);
    case OpKind::silu_mul:
      return fill(op, exact, elements, dtype, schema, silu_mul);
    case OpKind::softmax:
      return fill(op, exact, elements, dtype, schema, softmax);
    case OpKind::attention:
      return fill(op, exact, elements, dtype, schema, attention);
    case OpKind::gather:
    case OpKind::add:
      return fill(op, exact, elements, dtype, schema, nothing);
    case OpKind::cache:
    case OpKind::argmax:
    case OpKind::top_k:
      break;
  }
  fail("a budget was asked for an op that copies or compares: such ops are exact by their inputs");
}

}  // namespace lockstep
