#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// out[t] = the smallest index of the largest value of logits[t, :]. A NaN is larger than any
// number, so that it is seen.
//   out     [tokens]         int32
//   logits  [tokens, vocab]  fp32, fp16 or bf16
// Batch-invariant.
void argmax(const OpContext& context, TensorView out, TensorView logits);

// Its CUDA twin (cuda/cuda_ops.h).
decltype(argmax) argmax_cuda;

// Throws Error unless the arguments fit the contract above, on that device. Both twins call it.
void check_argmax(TensorView out, TensorView logits, DeviceKind device);

}  // namespace lockstep
