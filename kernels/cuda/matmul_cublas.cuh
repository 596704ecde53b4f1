#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// matmul by cuBLASLt, for arguments that were checked. False, with nothing done, when the library
// has no code for them (rows of odd length, say). Which code it takes is asked once per shape and
// kept; the workspace of a device never changes, so that a product has the same bits every time.
// One stream of a device at a time, because of that workspace.
bool matmul_cublas(const OpContext& context, const TensorView& out, const TensorView& x,
                   const TensorView& weight, const TensorView& bias);

}  // namespace lockstep
