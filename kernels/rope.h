#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// Rotary position embedding in the half-split layout: with d = head_dim, j < d/2, p = positions[t],
//   out[t, h, j]       = x[t, h, j]       cos[p, j] - x[t, h, j + d/2] sin[p, j]
//   out[t, h, j + d/2] = x[t, h, j + d/2] cos[p, j] + x[t, h, j]       sin[p, j]
//   out, x     [tokens, heads, head_dim]  fp32, fp16 or bf16; may be the same memory
//   cos, sin   [entries, head_dim / 2]    fp32, any scaling of the attention included
//   positions  [tokens]                   int32, rows of cos and sin
// Works in fp32, rounds once, at the store. Batch-invariant. Source: Su et al. 2021 with the layout
// of GPT-NeoX. Throws Error when a position is outside the tables.
void rope(const OpContext& context, TensorView out, TensorView x, TensorView cos, TensorView sin,
          TensorView positions);

// Its CUDA twin (cuda/cuda_ops.h).
decltype(rope) rope_cuda;

// Throws Error unless the arguments fit the contract above, on that device. Both twins call it.
// The values of `positions` are not looked at.
void check_rope(TensorView out, TensorView x, TensorView cos, TensorView sin, TensorView positions,
                DeviceKind device);

}  // namespace lockstep
