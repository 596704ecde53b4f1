#pragma once

#include "src/judge/ledger.h"
#include "src/judge/pass_view.h"

namespace lockstep {

enum class Ties : uint8_t {
  any,
  first,  // the largest first, and of equal ones the smaller index; a NaN is larger than any number
};

// Whether the indices that an op chose (argmax, top_k), `chosen` [rows, k] or [rows], are those of
// the largest of `values` [rows, n]. Which of several equal values are taken, and in which order
// all are named, is a matter of right or wrong where the op promises it (Ties::first), as the
// headers of this project's do, and the values are known.
// `deviation`, fp64 and of the shape of `values`, is one standard deviation of values that were not
// recorded; empty: they are known. An index is wrong then where it is by all that two values may be
// off, each by kCarriedDeviations sqrt(kCarriedVariance) of its own (budget.h), added up, as what
// they are off by may be alike or not. Rows of which no choice could be shown to be wrong are
// inconclusive.
struct ChoiceOutcome {
  NodeOutcome node;
  bool unknown = false;  // an index is that of nothing
  // By how much the values of two indices must differ for a wrong choice to show, by the root mean
  // square of their row, where that is most; 0: they are known.
  double width = 0;
};
// Whether one row's choice among known values is right by that rule.
bool is_right_choice(const std::vector<double>& values, const std::vector<double>& indices,
                     Ties ties);
ChoiceOutcome judge_choice(const NodeRows& node, bool one, Ties ties, const TensorView& values,
                           const TensorView& chosen, const TensorView& deviation = {});

}  // namespace lockstep
