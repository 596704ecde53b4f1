// Sums of squares as a plain loop in fp32 has them.
#pragma once

#include "src/judge/numbers.h"

namespace at {
class Tensor;
}

namespace lockstep {

// Relative errors of the sums of x^2 over the last axis, a row each, where fp32 adds one square
// after the other, in units of 2^-24 and without their sign. x: fp64, of any device.
Numbers errors_of_serial_squares(const at::Tensor& x);

}  // namespace lockstep
