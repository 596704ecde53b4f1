// A budget has three parts, added element by element: what the op's own fp32 arithmetic may be off
// (JudgedOp::InnerError, from src/judge/ops); what a rounding on the way adds where its value lies
// so near the border of two numbers that fp32 cannot tell (near_tie); and half a spacing for the
// last rounding, taken at the magnitude that the first two may lead to. The variance adds the
// squares of the same parts, each by its chance.
#include "src/judge/budget.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"
#include "src/judge/budget_loops.h"
#include "src/judge/ops/errors.h"
#include "src/stats/mutant.h"
#include "src/stats/roundoff.h"

namespace lockstep {
namespace {

bool fits_step(const JudgedOp& op, const Exact& e, const Step& step) {
  const size_t n = e.want.size();
  return op.reach != nullptr && step.value.size() == n &&
         (step.slope.empty() || step.slope.size() == n) && (!op.fits || op.fits(e, step));
}

// An answer that lacks a magnitude would make a budget of 0, which calls every engine wrong.
void check_sizes(const JudgedOp& op, const Exact& e, Elements elements) {
  const size_t n = e.want.size();
  if (elements.first > n || elements.count > n - elements.first)
    fail("budgets of {} elements from {} on were asked for, of a result of {}: ask for some of it",
         elements.count, elements.first, n);
  bool ok = static_cast<int64_t>(n) == e.shape.count() && (!op.is_full || op.is_full(e));
  for (const Step& step : e.steps) ok = ok && fits_step(op, e, step);
  ok = ok && e.ties.size() == e.tie_squares.size() && (e.ties.empty() || e.ties.size() == n);
  if (!ok)
    fail(
        "the oracle's answer of shape {} lacks magnitudes that its budget needs: fill the fields "
        "of Exact that oracle.h lists for the op",
        e.shape.text());
}

// Fills what a Budget has of each element.
class Filler {
 public:
  Filler(const JudgedOp& op, const Exact& exact, DType dtype, Elements elements, DType inside)
      : op_(op), exact_(exact), dtype_(dtype), inside_(inside), elements_(elements) {
    budget_.gain = op.gain(exact);
    budget_.misrounds = misrounds_of(op.kind, exact.contract, dtype);
    budget_.meets_borders = op.meets_borders && exact.steps.empty();
    has_products_ = op.is_product != nullptr && exact.steps.empty();
    if (has_products_ && dtype != DType::f32)
      budget_.misround_in_gain = misround_in_proportion(dtype);
    const size_t count = elements.count;
    for (auto* values : {&budget_.limit, &budget_.variance, &budget_.misround})
      values->resize(count);
    if (op.is_sum) {
      common_ = common_part(static_cast<double>(exact.terms));
      budget_.usual_misround = budget_.misrounds;
    }
    if (op.has_shared) budget_.shared.resize(count);
    if (op.has_underflow) budget_.underflow.resize(count);
  }

  Budget fill() {
    op_.inner(exact_, elements_.first, inside_,
              {budget_.limit, budget_.variance, budget_.shared, budget_.underflow});
    if (exact_.steps.empty() && exact_.ties.empty() && dtype_ != DType::f64)
      put_all();
    else
      for (size_t i = 0; i < elements_.count; ++i) put(i);
    if (is_mutant(Mutant::wide_budgets)) widen(20);
    return std::move(budget_);
  }

 private:
  // Enlarges all that a budget allows, alike in every element: one of the judge's own faults, which
  // its tests must notice.
  void widen(double factor) {
    for (double& limit : budget_.limit) limit *= factor;
    for (double& variance : budget_.variance) variance *= factor * factor;
    for (double& chance : budget_.misround) chance = std::min(1.0, factor * chance);
    budget_.usual_misround *= factor;
    budget_.misround_in_gain *= factor;
    budget_.gain *= factor;
  }

  // Does as put() for all elements, where nothing is rounded on the way, in loops for vectors.
  void put_all() {
    const std::span<const double> want(exact_.want.begin() + elements_.first, elements_.count);
    add_rounding(want, dtype_, budget_.misrounds, common_, budget_);
    if (!budget_.meets_borders && !has_products_) return;
    for (size_t i = 0; i < want.size(); ++i)
      budget_.misround[i] = std::min(1.0, turned(i, budget_.misround[i]));
  }

  // The chance of another number by the error before the last rounding, from that of a number that
  // lies anywhere. What lies near a border is turned more often than that; what lies far from it is
  // held to no less: how errors spread is not known.
  // Where the oracle cannot tell on which side of it a result lies both neighbours are that result
  // rounded, and to be neither takes as much as anywhere.
  double turned(size_t at, double chance) const {
    const size_t i = elements_.first + at;
    const bool is_product = has_products_ && op_.is_product(exact_, i);
    if (chance > kOneBorder || !(budget_.meets_borders || is_product)) return chance;
    // Most lie so far from a border that the error function has nothing left there.
    const double want = exact_.want[i], spacing = ulp(want, dtype_);
    const double steps = std::fabs(want) / spacing;
    const double distance = std::fabs(steps - std::floor(steps) - 0.5);
    if (chance > 1e-15 && distance > 11 * chance) return chance;
    const double inner = is_product ? 0 : budget_.limit[at] - spacing / 2;
    if (on_border(distance * spacing, inner)) return chance;
    return std::max(chance, turning_chance(want, chance, dtype_));
  }

  // The element `at` of those that were asked for; its budget holds what the op adds.
  void put(size_t at) {
    const size_t i = elements_.first + at;
    const JudgedOp::InnerError inner{budget_.limit[at], budget_.variance[at]};
    const double spacing = ulp(exact_.want[i], dtype_);
    double ties = 0, tie_squares = 0, chance = 0;
    bool of_table = false;
    for (const Step& step : exact_.steps) {
      const JudgedOp::Reach reach = op_.reach(exact_, step, i);
      const NearTie tie = near_tie(step.value[i], reach.most, reach.usual, inside_);
      if (tie.step == 0) continue;
      const double slope = step.slope.empty() ? 1 : std::fabs(step.slope[i]);
      double moved = tie.step * slope;
      if (op_.step_moves) moved = op_.step_moves(exact_, step, i, moved, inside_);
      of_table = op_.one_table;
      ties += moved;
      tie_squares += tie.chance * (moved * moved);
      chance += tie.chance;
    }
    if (!exact_.ties.empty()) {
      ties += exact_.ties[i];
      tie_squares += exact_.tie_squares[i];
      chance += std::sqrt(exact_.tie_squares[i]) / spacing;
    }
    // The last rounding is of the number that the kernel has by then, which may lie in the next
    // binade.
    const double out = ulp(std::fabs(exact_.want[i]) + inner.limit + ties, dtype_) / 2;
    budget_.limit[at] = out + inner.limit + ties;
    budget_.variance[at] = of_table ? std::numeric_limits<double>::infinity()
                                    : spacing * spacing / 12 + inner.variance + tie_squares;
    // A misround by the op's own arithmetic is bounded by what was measured of kernels
    // (misrounds_of); one by a near tie is added to that, as it depends on where this very number
    // lies.
    const double deviation = std::sqrt(inner.variance);
    double inside = misround_chance(deviation, spacing, budget_.misrounds, common_);
    // After a rounding on the way results lie anywhere, or a product is exact.
    if (budget_.meets_borders || has_products_) inside = turned(at, inside);
    budget_.misround[at] = std::min(1.0, inside + chance);
  }

  const JudgedOp& op_;
  const Exact& exact_;
  DType dtype_, inside_;
  Elements elements_;
  bool has_products_ = false;  // JudgedOp::is_product says which
  double common_ = 0;          // common_part(); 0: no sum
  Budget budget_;
};

// The spacing, of numbers from 1 to 2, of those that a product's operands are rounded to; 0: they
// are not.
double spacing_of_operands(RoundingContract contract) {
  if (contract == RoundingContract::operands_bf16) return 0x1p-7;
  const bool eleven_bits =
      contract == RoundingContract::tf32 || contract == RoundingContract::operands_fp16;
  return eleven_bits ? 0x1p-10 : 0;
}

}  // namespace

// The part that each kind of op adds is in src/judge/ops, one file a kind.
Budget budget_of(OpKind kind, const Exact& exact, DType dtype, Elements elements,
                 std::optional<DType> inside) {
  const JudgedOp& op = judged_op(kind);
  check(op.inner != nullptr,
        "a budget was asked for an op that copies or compares: such ops are exact by their inputs");
  if (elements.count == std::dynamic_extent)
    elements.count = exact.want.size() - std::min(elements.first, exact.want.size());
  check_sizes(op, exact, elements);
  return Filler(op, exact, dtype, elements, inside.value_or(dtype)).fill();
}

double misrounds_of(OpKind kind, RoundingContract contract, DType dtype) {
  const JudgedOp& op = judged_op(kind);
  if (op.knows_steps != nullptr && !op.knows_steps(contract)) return 1;
  if (dtype == DType::bf16) return 0.02;
  return dtype == DType::f16 ? 0.10 : 1;
}

double gain_of(OpKind kind, const Exact& exact) { return judged_op(kind).gain(exact); }

Turned turned_by_inputs(const Exact& e, size_t i, DType dtype) {
  using enum RoundingContract;
  const bool reads_fp16 =
      e.contract == operands_fp16 || e.contract == cache_fp16 || e.contract == flash_fp16;
  Turned turned;
  const auto add = [&](double moved, double times = 1) {
    turned.most += moved * times;
    turned.variance += moved * moved / 6 * times;
  };
  if (e.contract == fused) return turned;
  if (!e.x1c_x2s.empty()) {  // rope: its steps are tables, its products are rounded under hf
    if (e.contract == hf) add(ulp(e.x1c_x2s[i], dtype), 2);
    return turned;
  }
  for (const Step& step : e.steps)
    add(ulp(step.value[i], dtype) * (step.slope.empty() ? 1 : std::fabs(step.slope[i])));
  // Roundings of scores and weights are taken for independent errors of all keys: a score that goes
  // the other way moves the element by p (v - o), a weight by p v less p o. It moves the logarithm
  // of their sum by p, which is 1 at most.
  if (!e.score.empty() && e.contract != hf) {  // attention: each key's score, and its weight
    const bool is_logarithm = e.spread_squares.empty();
    const double score = e.score[is_logarithm ? i : i / e.shape.last()];
    const DType inside = reads_fp16 ? DType::f16 : dtype;
    const double spread = is_logarithm ? 1 : e.spread_squares[i];
    const double of_scores = squared(ulp(score, inside)) / 6 * spread;
    const double of_weights =
        is_logarithm ? 0
                     : squared(2 * unit_roundoff(inside)) / 6 * (e.weighted_squares[i] + spread);
    turned.variance += of_scores + of_weights;
    turned.most += kCarriedDeviations * std::sqrt(of_scores + of_weights);
  }
  // An operand of a product may be rounded the other way. Of S = sum |a||w| one term may be nearly
  // all, whose operand the whole row has in common.
  if (const double spacing = spacing_of_operands(e.contract); spacing > 0 && e.score.empty())
    add(spacing * e.magnitude[i]);
  const bool sums_up = e.steps.empty() && e.score.empty() && !e.magnitude.empty();
  if (sums_up && (e.contract == hf || e.contract == products_rounded))  // of experts
    add(ulp(e.magnitude[i], dtype), static_cast<double>(e.terms));
  return turned;
}

void widen(Budget& budget, const Exact& exact, size_t first, std::span<const double> variance,
           DType dtype) {
  budget.carried.resize(variance.size());
  for (size_t i = 0; i < variance.size(); ++i) {
    if (!(variance[i] > 0)) continue;
    const Turned turned = turned_by_inputs(exact, first + i, dtype);
    const double carried = kCarriedVariance * variance[i];
    budget.limit[i] += kCarriedDeviations * std::sqrt(carried) + turned.most;
    budget.variance[i] += carried + turned.variance;
    budget.carried[i] = carried;
    // An input that is off by more than a rounding may change any stored number, so that a share of
    // misrounds says nothing here.
    budget.misround[i] = 1;
  }
  budget.misrounds = budget.usual_misround = budget.misround_in_gain = 1;
  budget.gain = 0;
}

}  // namespace lockstep
