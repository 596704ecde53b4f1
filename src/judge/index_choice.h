#pragma once

#include "src/judge/ledger.h"
#include "src/judge/pass_view.h"

namespace lockstep {

// Whether the indices that an op chose (argmax, top_k), `chosen` [rows, k] or [rows], are those of
// the largest of `values` [rows, n]. By value: which of several equal values are taken is not a
// matter of right or wrong, nor is their order.
struct ChoiceOutcome {
  NodeOutcome node;
  bool unknown = false;  // an index is that of nothing
};
ChoiceOutcome judge_choice(const NodeRows& node, bool one, const TensorView& values,
                           const TensorView& chosen);

}  // namespace lockstep
