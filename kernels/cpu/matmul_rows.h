#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// matmul's own loops, for arguments that were checked: right for any number of tokens, and the
// quickest for few, because the weights are read once for all of them. The sum of an element
// depends on its row of x and its row of weight alone, not on the other tokens or the threads.
void matmul_rows(const OpContext& context, TensorView out, TensorView x, TensorView weight,
                 TensorView bias);

}  // namespace lockstep
