#pragma once

#include <span>
#include <vector>

#include "src/judge/oracle.h"

namespace lockstep {

// The standard deviations of an attention's K and V, as KeysValues; empty: both are exact.
using KeysValuesDeviation = KeysValues;

// Returns the variance that independent errors of an op's inputs bring each element of its result,
// by the oracle on inputs that are moved by their deviations, in patterns of signs under which two
// errors that meet in an element (of a pair of RoPE, of gate and up) show their squares exactly.
// Where an op sums over many elements the patterns are a sample, at least 32 a column, and a
// variance is taken for the product of one of its row and one of its column.
//
// deviations: one for each of call.inputs, fp64, of its shape; an empty one: the input is exact.
// `want` is the result of the call. Throws Error as the oracle does.
Numbers carried_variance(Oracle& oracle, const OracleCall& call,
                         std::span<const TensorView> deviations,
                         const KeysValuesDeviation& of_cache, const Exact& want);

}  // namespace lockstep
