#pragma once

#include <cstdint>

#include "kernels/base/tensor.h"

namespace lockstep {

// An engine fills the slots of its K/V cache with one number before it hands them out, so that a
// row that nobody wrote is known by it: whether each number of the row has that number's very bits.
// A NaN that was computed has other ones as a rule. False of integers.
bool holds_fill(const TensorView& rows, int64_t row, float fill);

}  // namespace lockstep
