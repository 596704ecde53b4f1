#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// out[t, :] = the indices of the k largest values of logits[t, :], largest first; of equal values
// the smaller index is taken first. A NaN is larger than any number, so that it is seen.
//   out     [tokens, k]        int32
//   logits  [tokens, experts]  fp32, fp16 or bf16; experts >= k
// Batch-invariant.
void top_k(const OpContext& context, TensorView out, TensorView logits);

// out[t, c] = softmax(logits[t, :])[index[t, c]], over all logits of the row; `normalised`: then
// divided by the sum of the row's k, which is the softmax over the chosen logits alone.
//   out     [tokens, k]        of logits' dtype
//   logits  [tokens, experts]  fp32, fp16 or bf16
//   index   [tokens, k]        int32
// Works in fp32, sums the logits or the choices in an order that they alone decide, rounds once, at
// the store. Batch-invariant. Throws Error when an index is no expert.
// Source: Shazeer et al. 2017 (sparsely gated experts); Qwen3-MoE's norm_topk_prob.
void routing_weights(const OpContext& context, TensorView out, TensorView logits, TensorView index,
                     bool normalised);

// Their CUDA twins (cuda/cuda_ops.h).
decltype(top_k) top_k_cuda;
decltype(routing_weights) routing_weights_cuda;

// Throws Error unless the arguments fit the contracts above, on that device. Both twins call them.
void check_top_k(TensorView out, TensorView logits, DeviceKind device);
void check_routing_weights(TensorView out, TensorView logits, TensorView index, DeviceKind device);

}  // namespace lockstep
