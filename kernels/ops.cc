#include "kernels/ops.h"

namespace lockstep {

Ops cpu_ops() {
  return {
      .gather_rows = gather_rows,
      .rms_norm = rms_norm,
      .matmul = matmul,
      .rope = rope,
      .kv_write = kv_write,
      .kv_gather = kv_gather,
      .paged_attention = paged_attention,
      .silu_mul = silu_mul,
      .add = add,
      .argmax = argmax,
      .top_k = top_k,
      .softmax_of = softmax_of,
      .expert_matmul = expert_matmul,
      .weighted_sum = weighted_sum,
      .fused = {},
  };
}

}  // namespace lockstep
