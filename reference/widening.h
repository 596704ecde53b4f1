// To widen what is stored in 16 bits, as weights are block by block: LibTorch's own loop on the CPU
// takes as long as the product with a few rows.
#pragma once

#include <c10/core/ScalarType.h>

namespace at {
class Tensor;
}

namespace lockstep {

// x, contiguous bf16 in host memory, as fp32 or fp64: exactly, in a tensor of its own.
at::Tensor widened(const at::Tensor& x, c10::ScalarType to);

}  // namespace lockstep
