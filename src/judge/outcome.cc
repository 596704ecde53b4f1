// The order in which a measured node is asked decides its verdict: a number that is not finite
// where the exact result is; a statistic over its limit; an overflow that the exact result has too;
// what an input of the op passes on; and at last whether the bits are those of the exact result
// rounded.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/judge/op_judge.h"

namespace lockstep {
namespace {

std::vector<int64_t> index_of(const Element& element, const Shape& row_shape) {
  std::vector<int64_t> index(row_shape.rank() + 1);
  int64_t rest = element.offset;
  for (int axis = row_shape.rank() - 1; axis >= 0; --axis) {
    index[axis + 1] = rest % row_shape[axis];
    rest /= row_shape[axis];
  }
  index[0] = element.position;
  return index;
}

void show(Finding& finding, const Element& element, const Shape& row_shape) {
  finding.position = static_cast<int32_t>(element.position);
  finding.index = index_of(element, row_shape);
  finding.want = element.want;
  finding.got = element.got;
  finding.budgets = element.budgets;
  finding.of_row = element.of_row;
}

// It is of the element that is shown. A logarithm of nothing is -Inf, which is no NaN either.
std::string nonfinite_rule(const Measure& measure) {
  static constexpr const char* kRules[] = {
      "", "overflow: the exact result is too large for the dtype as well",
      "propagated: an input of the op is not finite",
      "introduced: the exact result is a finite number"};
  const Element& at = measure.nonfinite_at;
  if (measure.nonfinite != Measure::NonFinite::introduced || std::isfinite(at.want))
    return kRules[static_cast<size_t>(measure.nonfinite)];
  if (std::isinf(at.want))
    return fmt::format("introduced: the exact result is {}Inf", at.want < 0 ? "-" : "");
  return "introduced: the exact result is no number, and the op hides that";
}

void make_nonfinite(NodeOutcome& outcome, const Measure& measure, const Shape& row_shape) {
  outcome.verdict = Verdict::nonfinite;
  show(outcome.finding, measure.nonfinite_at, row_shape);
  outcome.finding.budgets = std::numeric_limits<double>::infinity();
  outcome.finding.rule = fmt::format("{} ({} of {} elements)", nonfinite_rule(measure),
                                     measure.nonfinite_count, measure.elements);
  outcome.position = outcome.finding.position;
}

const Element& element_of(const Measure& measure, const Statistic& statistic) {
  if (statistic.kind == StatisticKind::worst_slice) return measure.worst_scattered;
  if (statistic.kind != StatisticKind::misrounds) return measure.worst;
  const bool of_slice = statistic.slice.find(':') != std::string::npos;
  const std::optional<Element>& shown = of_slice ? measure.misrounded_in_slice : measure.misrounded;
  return shown ? *shown : measure.worst;  // limits of 0 fail a share of none
}

void make_introduced(NodeOutcome& outcome, const Measure& measure, const Statistic& statistic,
                     double scale, const Shape& row_shape) {
  const StatisticKind kind = statistic.kind;
  outcome.verdict = Verdict::introduced;
  Finding& finding = outcome.finding;
  show(finding, element_of(measure, statistic), row_shape);
  finding.statistic = kind;
  finding.value = statistic.value;
  finding.limit = statistic.limit * scale;
  finding.rule = statistic.slice;
  if (kind == StatisticKind::bits || kind == StatisticKind::max_error) return;
  finding.rule += fmt::format("; no element is over its budget, the one shown is {:.2g} of it",
                              finding.budgets);
  finding.budgets = statistic.value / statistic.limit;
}

}  // namespace

NodeOutcome outcome_of(Measure measure, const Shape& row_shape, double limit_scale) {
  NodeOutcome outcome;
  outcome.wrong = std::move(measure.wrong);
  outcome.errors = std::move(measure.errors);
  outcome.position = static_cast<int32_t>(measure.worst.position);
  outcome.sums.elements = measure.elements - measure.excluded;
  outcome.sums.introduced = measure.sum_squares;
  outcome.t1 = measure.worst.budgets;
  outcome.of_row = measure.worst.of_row;
  outcome.excluded = measure.excluded;
  outcome.largest = measure.largest;
  outcome.blank = measure.excluded == measure.elements;
  outcome.besides = measure.different == 0 ? Verdict::bitwise : Verdict::rounding;
  const Statistic* failing = nullptr;
  // Statistics come with the plainest first (bits, the largest error), and the first that fails is
  // the one that is told.
  for (const Statistic& statistic : measure.statistics) {
    if (statistic.kind == StatisticKind::rms_error) {
      outcome.t2 = statistic.value / statistic.limit;
      outcome.has_t2 = true;
    }
    outcome.limit_ratio = std::max(outcome.limit_ratio, statistic.limit_ratio());
    if (!failing && !statistic.passes(limit_scale)) failing = &statistic;
  }
  if (measure.elements == 0) {
    outcome.verdict = Verdict::inconclusive;
    outcome.reason = "the tensor has no elements";
  } else if (measure.nonfinite == Measure::NonFinite::introduced) {
    make_nonfinite(outcome, measure, row_shape);
  } else if (failing) {
    make_introduced(outcome, measure, *failing, limit_scale, row_shape);
  } else if (measure.nonfinite == Measure::NonFinite::expected) {
    make_nonfinite(outcome, measure, row_shape);
    outcome.overflows = true;
  } else if (measure.nonfinite == Measure::NonFinite::propagated) {
    make_nonfinite(outcome, measure, row_shape);
    outcome.passes_on = true;
  } else {
    outcome.verdict = outcome.besides;
  }
  return outcome;
}

}  // namespace lockstep
