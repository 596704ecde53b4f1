#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// out = gate / (1 + exp(-gate)) * up, elementwise over equal shapes of one dtype (fp32, fp16,
// bf16). Works in fp32, rounds once, at the store. Batch-invariant. Source: Shazeer 2020 (SwiGLU).
void silu_mul(const OpContext& context, TensorView out, TensorView gate, TensorView up);

// Its CUDA twin (cuda/cuda_ops.h).
decltype(silu_mul) silu_mul_cuda;

// Throws Error unless the arguments fit the contract above, on that device. Both twins call it.
void check_silu_mul(TensorView out, TensorView gate, TensorView up, DeviceKind device);

}  // namespace lockstep
