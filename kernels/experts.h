#pragma once

#include <vector>

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// out[t, c, :] = x[t, c, :] weights[index[t, c]]^T: each choice of a token through the expert it
// names. Rows of one expert are gathered and multiplied by matmul, whose contract holds for each:
// products and sums in fp32, one rounding, not batch-invariant.
//   out      [tokens, k, n]
//   x        [tokens, k, in], or [tokens, in] where all choices of a token read the same
//   index    [tokens, k]  int32
//   weights  an [n, in] an expert
// fp32, fp16 or bf16, all of one dtype. Throws Error when an index is no expert.
void expert_matmul(const OpContext& context, TensorView out, TensorView x, TensorView index,
                   const std::vector<TensorView>& weights);

// out[t, :] = sum over c of weights[t, c] * x[t, c, :], in the order of the choices.
//   out      [tokens, width]
//   x        [tokens, k, width]
//   weights  [tokens, k]
// fp32, fp16 or bf16, all of one dtype; products and sums in fp32; rounds once, at the store.
// Batch-invariant.
void weighted_sum(const OpContext& context, TensorView out, TensorView x, TensorView weights);

// Their CUDA twins (cuda/cuda_ops.h).
decltype(expert_matmul) expert_matmul_cuda;
decltype(weighted_sum) weighted_sum_cuda;

// Throws Error unless the arguments fit the contracts above, on that device. Both twins call them.
void check_expert_matmul(TensorView out, TensorView x, TensorView index,
                         const std::vector<TensorView>& weights, DeviceKind device);
void check_weighted_sum(TensorView out, TensorView x, TensorView weights, DeviceKind device);

}  // namespace lockstep
