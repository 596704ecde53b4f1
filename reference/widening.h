// To widen what is stored as bf16, as weights are block by block: LibTorch's own loop on the CPU
// takes as long as the product with a few rows.
#pragma once

#include "kernels/base/dtype.h"

namespace at {
class Tensor;
}

namespace lockstep {

// x, contiguous bf16 in host memory, as fp32 or fp64: exactly, in a tensor of its own.
at::Tensor widened_bf16(const at::Tensor& x, DType to);

}  // namespace lockstep
