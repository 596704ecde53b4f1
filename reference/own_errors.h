#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "src/judge/oracle.h"

namespace lockstep {

// The error before the last rounding (JudgedOp::InnerError) of an op's results, whose numbers are
// held (bridge.h), in their shape and on the device that holds them.
struct OwnErrors {
  at::Tensor limit, variance;  // undefined: the op is exact by its inputs
  at::Tensor shared;           // undefined: errors share nothing
  double usual = 0;            // of a sum: usual_sum()
};

// Nothing: of another op, or of a chain with roundings on the way.
std::optional<OwnErrors> own_errors(OpKind op, const Exact& e);

}  // namespace lockstep
