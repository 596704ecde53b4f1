#pragma once

#include <string>

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// Whether oneDNN multiplies matrices of that dtype on this CPU without going through another type.
bool onednn_has(DType dtype);

std::string version_of_onednn();  // "3.6.2"

// matmul by oneDNN, for arguments that were checked and a dtype that onednn_has. Every thread of
// the pool multiplies a part of the columns of `out` on its own: oneDNN's own threads spin, and
// know nothing of ours.
void matmul_onednn(const OpContext& context, TensorView out, TensorView x, TensorView weight,
                   TensorView bias);

}  // namespace lockstep
