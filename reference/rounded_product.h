// Products of operands that a contract rounds before they are multiplied.
#pragma once

#include <functional>

#include "reference/held_weights.h"
#include "src/judge/oracle.h"
#include "traces/trace.h"

namespace lockstep {

// Multiplies an operand as it is read, fills in the magnitude, and tf32's halves where that is not
// null.
using Multiply = std::function<at::Tensor(const at::Tensor& operand, at::Tensor* magnitude,
                                          const HeldWeights::Tf32* tf32)>;

// x W^T, [rows, outputs] in fp64, where x is. What it may be off is filled in likewise:
// `magnitude`, and under tf32 `halves`, what operands that lie halfway may move it by.
at::Tensor product_under(RoundingContract contract, const at::Tensor& x, at::Tensor& magnitude,
                         at::Tensor& halves, const Multiply& multiply);
// Adds what these may move the result by; undefined: nothing.
void put_halves(const at::Tensor& halves, Exact& exact);

}  // namespace lockstep
