// Tensors that a fused op stores nowhere are allocated for the call and freed with it.
#include "src/replay/fused_by_pieces.h"

#include "kernels/base/memory.h"

namespace lockstep {

FusedOps by_pieces(const Ops& ops) {
  FusedOps fused;
  fused.add_rms_norm = [ops](const OpContext& context, const TensorView& out,
                             const AddNormInput& in) {
    ops.add(context, in.sum, in.a, in.b);
    ops.rms_norm(context, out, in.sum, in.weight, in.eps);
  };
  fused.qkv_matmul = [ops](const OpContext& context, std::span<const Linear> all,
                           const TensorView& x, const AddNormInput*) {
    for (const Linear& linear : all) ops.matmul(context, linear.out, x, linear.weight, linear.bias);
  };
  fused.qk_norm_rope_kv_write = [ops](const OpContext& context, const QkNormRopeKvWrite& a) {
    const auto like = [](const TensorView& x) { return Tensor(x.shape, x.dtype, x.device); };
    const Tensor q_norm = like(a.q), k_norm = like(a.k), k_rope = like(a.k);
    TensorView q = a.q, k = a.k;
    if (!a.q_weight.empty()) {
      ops.rms_norm(context, q_norm, a.q, a.q_weight, a.eps);
      ops.rms_norm(context, k_norm, a.k, a.k_weight, a.eps);
      q = q_norm, k = k_norm;
    }
    ops.rope(context, a.q_rope, q, a.cos, a.sin, a.positions);
    ops.rope(context, k_rope, k, a.cos, a.sin, a.positions);
    if (!a.k_rope.empty()) copy(a.k_rope, k_rope);
    ops.kv_write(context, a.cache, k_rope, a.v, a.slots);
  };
  fused.gate_up_silu = [ops](const OpContext& context, const TensorView& out, const TensorView& x,
                             const WeightView& gate_weight, const WeightView& up_weight,
                             const TensorView&, const TensorView&, const AddNormInput*) {
    const Tensor gate(out.shape, out.dtype, out.device), up(out.shape, out.dtype, out.device);
    ops.matmul(context, gate, x, gate_weight, {});
    ops.matmul(context, up, x, up_weight, {});
    ops.silu_mul(context, out, gate, up);
  };
  return fused;
}

}  // namespace lockstep
