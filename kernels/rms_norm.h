#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// out[.., :] = x[.., :] / sqrt(mean(x[.., :]^2) + eps) * weight, over the last axis: hidden for the
// norms of the residual stream, head_dim for QK-norm ([tokens, heads, head_dim]).
//   out, x  [.., width]  fp32, fp16 or bf16, all three of one dtype
//   weight  [width]
// Accumulates in fp32, takes the root in fp64, rounds to the dtype once, at the store.
// Batch-invariant: a row's bits depend on that row alone. Source: Zhang and Sennrich 2019, as in
// Hugging Face's Qwen3RMSNorm.
void rms_norm(const OpContext& context, TensorView out, TensorView x, TensorView weight, float eps);

// Its CUDA twin (cuda/cuda_ops.h).
decltype(rms_norm) rms_norm_cuda;

// Throws Error unless the arguments fit the contract above. Both twins call it.
void check_rms_norm(TensorView out, TensorView x, TensorView weight);

}  // namespace lockstep
