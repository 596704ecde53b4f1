#pragma once

#include "kernels/base/tensor.h"

namespace lockstep {

// Element i of a CPU tensor of a float dtype becomes `value`, rounded once, to nearest even.
void store(const TensorView& out, int64_t i, double value);

}  // namespace lockstep
