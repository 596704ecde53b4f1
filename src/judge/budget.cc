#include "src/judge/budget.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"
#include "src/stats/mutant.h"

namespace lockstep {
namespace {

constexpr double u = kAccumulatorRoundoff;

// One element's share beyond the rounding of the output: added to B, and squared to V.
struct Inner {
  double limit = 0;
  double deviation_squared = 0;
  double shared = 0;     // of deviation_squared
  double underflow = 0;  // of limit
};

double squared(double x) { return x * x; }

// Standard deviation of a norm's scale, in units of u.
double norm_scale(const Exact& e) { return walk_of(static_cast<double>(e.terms)) / 2 + 3; }
double norm_bound(const Exact& e) {
  return kLambda * std::sqrt(static_cast<double>(e.terms)) / 2 + 8;
}

Inner linear(const Exact& e, size_t i) {
  const auto n = static_cast<double>(e.terms);
  const double size = u * e.magnitude[i];
  return {kLambda * std::sqrt(n) * size, squared(walk_of(n) * size)};
}

Inner norm(const Exact& e, size_t i) {
  const double size = u * std::fabs(e.want[i]), shared = squared(norm_scale(e) * size);
  return {norm_bound(e) * size, shared, shared};
}

// What an angle that is off by `angle` units of u moves a result: first by its derivative, and
// where that is 0 by the curve, want angle^2 / 2. `variance` is that of the two together.
struct Turn {
  double most, variance;
};
Turn turn(const Exact& e, size_t i) {
  const double size = std::fabs(e.want[i]), most = 4 * e.angle[i] * u,
               square = 3 * squared(e.angle[i] * u);
  return {most * e.turned[i] + squared(most) / 2 * size,
          square * squared(e.turned[i]) + 0.75 * squared(square * size)};
}

Inner rope(const Exact& e, size_t i) {
  const Turn by = turn(e, i);
  return {4 * u * e.magnitude[i] + by.most, squared(0.85 * u * e.x1c_x2s[i]) + by.variance};
}

Inner angles(const Exact& e, size_t i) {
  const Turn by = turn(e, i);
  const double size = u * std::fabs(e.want[i]);
  return {4 * size + by.most, squared(size) + by.variance};
}

Inner silu_mul(const Exact& e, size_t i) {
  const double size = u * std::fabs(e.want[i]);
  const double underflow = 88 * kLeastNormal * std::fabs(e.factor[i]);
  return {16 * size + underflow, squared(3 * size) + squared(underflow), 0, underflow};
}

// An exp of x is off by |x| u for the rounding of x and some ulp of its own, both in the numerator
// and, by their mean, in the sum of n.
Inner softmax(const Exact& e, size_t i) {
  const double size = u * std::fabs(e.want[i]);
  const double walk = std::sqrt(static_cast<double>(e.terms));
  const double shared = squared((3 + 0.3 * (e.magnitude[i] + walk)) * size);
  return {(16 + 2 * e.magnitude[i] + kLambda * walk) * size + kLeastNormal,
          shared + squared(kLeastNormal), shared, kLeastNormal};
}

Inner attention(const Exact& e, size_t i) {
  const auto dim = static_cast<size_t>(e.shape.last());
  const auto heads = static_cast<size_t>(e.shape[1]);
  const double score = e.score[i / dim], n = e.row_terms[i / dim / heads];
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

// Weights that are rounded too, each by itself.
Inner rounded_weights(const Exact& e, size_t i, DType dtype) {
  const double weights = unit_roundoff(dtype) * std::sqrt(e.weighted_squares[i]);
  const double variance = squared(weights) / 4;
  const size_t head = i / static_cast<size_t>(e.shape.last());
  return {0.6 * kLambda * weights, variance, variance * std::sqrt(e.overlap[head])};
}

Inner nothing(const Exact&, size_t) { return {}; }

// How far a kernel may be from the value of a step before it rounds it.
struct Reach {
  double most, usual;
};

Reach reach_of(OpKind op, const Exact& e, const Step& step, size_t i) {
  const double z = std::fabs(step.value[i]);
  switch (op) {
    case OpKind::norm:
      return {norm_bound(e) * u * z, norm_scale(e) * u * z};
    case OpKind::silu_mul:
      return {16 * u * z, 3 * u * z};
    case OpKind::rope: {
      const double most = (3 * z + 4 * e.angle[i] * step.other[i]) * u;
      return {most, most / 3};
    }
    default: {
      const auto n = static_cast<double>(e.terms);
      const double size = u * e.magnitude[i];
      return {kLambda * std::sqrt(n) * size, walk_of(n) * size};
    }
  }
}

bool fits_step(OpKind op, const Exact& e, const Step& step) {
  const size_t n = e.want.size();
  return step.value.size() == n && (step.slope.empty() || step.slope.size() == n) &&
         (op != OpKind::rope || step.other.size() == n);
}

bool is_full(OpKind op, const Exact& e) {
  const size_t n = e.want.size();
  const auto full = [n](const Numbers& values) { return values.size() == n; };
  switch (op) {
    case OpKind::linear:
    case OpKind::expert_linear:
    case OpKind::weighted_sum:
    case OpKind::softmax:
      return full(e.magnitude);
    case OpKind::silu_mul:
      return full(e.factor);
    case OpKind::angles:
      return full(e.angle) && full(e.turned);
    case OpKind::rope:
      return full(e.magnitude) && full(e.angle) && full(e.x1c_x2s) && full(e.turned);
    case OpKind::attention: {
      if (e.shape.rank() != 3) return false;
      const auto rows = static_cast<size_t>(e.shape[0]);
      const size_t heads = rows * static_cast<size_t>(e.shape[1]);
      return full(e.magnitude) && full(e.spread) && full(e.spread_squares) &&
             full(e.weighted_squares) && e.row_terms.size() == rows && e.score.size() == heads &&
             (!rounds_weights(e.contract) || e.overlap.size() == heads);
    }
    default:
      return true;
  }
}

void check_sizes(OpKind op, const Exact& e, Elements elements) {
  const size_t n = e.want.size();
  if (elements.first > n || elements.count > n - elements.first)
    fail("budgets of {} elements from {} on were asked for, of a result of {}: ask for some of it",
         elements.count, elements.first, n);
  bool ok = static_cast<int64_t>(n) == e.shape.count() && is_full(op, e);
  for (const Step& step : e.steps) ok = ok && fits_step(op, e, step);
  ok = ok && e.ties.size() == e.tie_squares.size() && (e.ties.empty() || e.ties.size() == n);
  if (!ok)
    fail(
        "the oracle's answer of shape {} lacks magnitudes that its budget needs: fill the fields "
        "of Exact that oracle.h lists for the op",
        e.shape.text());
}

double gain_of(OpKind op, const Exact& e) {
  const auto truncated = [](double n) { return std::max(1.0, n / 16) * 0x1p-23; };
  switch (op) {
    case OpKind::attention: {
      double most = 1;
      for (const double n : e.row_terms) most = std::max(most, n);
      return truncated(most) + (rounds_weights(e.contract) ? 0x1p-13 : 0x1p-21);
    }
    case OpKind::norm:
    case OpKind::silu_mul:
      return 0x1p-21;
    case OpKind::softmax:
    case OpKind::rope:
    case OpKind::angles:
      return 0x1p-22;
    default:
      return truncated(static_cast<double>(e.terms));
  }
}

double misrounds_of(DType dtype) {
  if (dtype == DType::bf16) return 0.02;
  return dtype == DType::f16 ? 0.10 : 1;
}

// Fills what a Budget has of each element.
class Filler {
 public:
  Filler(OpKind op, const Exact& exact, DType dtype, Elements elements)
      : op_(op), exact_(exact), dtype_(dtype), elements_(elements) {
    budget_.gain = gain_of(op, exact);
    budget_.misrounds = misrounds_of(dtype);
    for (auto* values : {&budget_.limit, &budget_.variance, &budget_.misround})
      values->reserve(elements.count);
  }

  template <typename InnerOf>
  Budget fill(InnerOf inner_of) {
    const bool weights = op_ == OpKind::attention && rounds_weights(exact_.contract);
    if (weights) budget_.misrounds = 1;  // they are no step of a known chain
    for (size_t i = elements_.first; i < elements_.first + elements_.count; ++i) {
      Inner inner = inner_of(exact_, i);
      if (weights) {
        const Inner more = rounded_weights(exact_, i, dtype_);
        inner = {inner.limit + more.limit, inner.deviation_squared + more.deviation_squared,
                 inner.shared + more.shared, inner.underflow};
      }
      put(i, inner);
    }
    if (is_mutant(Mutant::wide_budgets)) widen(20);
    return std::move(budget_);
  }

 private:
  void widen(double factor) {
    for (double& limit : budget_.limit) limit *= factor;
    for (double& variance : budget_.variance) variance *= factor * factor;
    for (double& chance : budget_.misround) chance = std::min(1.0, factor * chance);
    budget_.gain *= factor;
  }

  void put(size_t i, const Inner& inner) {
    const double spacing = ulp(exact_.want[i], dtype_);
    double ties = 0, tie_squares = 0, chance = 0;
    bool of_table = false;
    for (const Step& step : exact_.steps) {
      const Reach reach = reach_of(op_, exact_, step, i);
      const NearTie tie = near_tie(step.value[i], reach.most, reach.usual, dtype_);
      if (tie.step == 0) continue;
      const double slope = step.slope.empty() ? 1 : std::fabs(step.slope[i]);
      double moved = tie.step * slope;
      if (op_ == OpKind::rope) {
        if (exact_.contract == RoundingContract::hf) moved += ulp(slope * step.value[i], dtype_);
        of_table = true;
      }
      ties += moved;
      tie_squares += tie.chance * squared(moved);
      chance += tie.chance;
    }
    if (!exact_.ties.empty()) {
      ties += exact_.ties[i];
      tie_squares += exact_.tie_squares[i];
      chance += std::sqrt(exact_.tie_squares[i]) / spacing;
    }
    // What is rounded last is what the kernel has by then, which may lie in the next binade.
    const double out = ulp(std::fabs(exact_.want[i]) + inner.limit + ties, dtype_) / 2;
    budget_.limit.push_back(out + inner.limit + ties);
    budget_.variance.push_back(of_table ? std::numeric_limits<double>::infinity()
                                        : spacing * spacing / 12 + inner.deviation_squared +
                                              tie_squares);
    const double inside = std::sqrt(inner.deviation_squared) / spacing;
    budget_.misround.push_back(std::min(1.0, std::min(inside, budget_.misrounds) + chance));
    if (op_ == OpKind::norm || op_ == OpKind::attention || op_ == OpKind::softmax)
      budget_.shared.push_back(inner.shared);
    if (op_ == OpKind::silu_mul || op_ == OpKind::softmax)
      budget_.underflow.push_back(inner.underflow);
  }

  OpKind op_;
  const Exact& exact_;
  DType dtype_;
  Elements elements_;
  Budget budget_;
};

}  // namespace

Budget budget_of(OpKind op, const Exact& exact, DType dtype, Elements elements) {
  if (elements.count == std::dynamic_extent)
    elements.count = exact.want.size() - std::min(elements.first, exact.want.size());
  check_sizes(op, exact, elements);
  Filler filler(op, exact, dtype, elements);
  switch (op) {
    case OpKind::linear:
    case OpKind::expert_linear:
    case OpKind::weighted_sum:
      return filler.fill(linear);
    case OpKind::norm:
      return filler.fill(norm);
    case OpKind::rope:
      return filler.fill(rope);
    case OpKind::silu_mul:
      return filler.fill(silu_mul);
    case OpKind::softmax:
      return filler.fill(softmax);
    case OpKind::attention:
      return filler.fill(attention);
    case OpKind::angles:
      return filler.fill(angles);
    case OpKind::gather:
    case OpKind::add:
      return filler.fill(nothing);
    case OpKind::cache:
    case OpKind::argmax:
    case OpKind::top_k:
      break;
  }
  fail("a budget was asked for an op that copies or compares: such ops are exact by their inputs");
}

}  // namespace lockstep
