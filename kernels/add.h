#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// out = a + b, elementwise over equal shapes of one dtype (fp32, fp16, bf16); `out` may be `a` or
// `b`. One rounding of an exact sum, to Inf where it overflows: class exact. Batch-invariant.
void add(const OpContext& context, TensorView out, TensorView a, TensorView b);

// Its CUDA twin (cuda/cuda_ops.h).
decltype(add) add_cuda;

// Throws Error unless the arguments fit the contract above, on that device. Both twins call it.
void check_add(TensorView out, TensorView a, TensorView b, DeviceKind device);

}  // namespace lockstep
