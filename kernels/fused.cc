#include "kernels/fused.h"

#include "kernels/ops.h"

namespace lockstep {
namespace {

// Whether both are the same plain function; what wraps one is another.
template <typename Signature>
bool same(const std::function<Signature>& a, const std::function<Signature>& b) {
  const auto* in_a = a.template target<Signature*>();
  const auto* in_b = b.template target<Signature*>();
  return in_a != nullptr && in_b != nullptr && *in_a == *in_b;
}

}  // namespace

FusedOps whole_fused_ops(const Ops& ops) {
  FusedOps whole = ops.fused;
  if (whole.pieces == nullptr) return {};
  const auto kept = [&](const auto... piece) {
    return (same(ops.*piece, whole.pieces->*piece) && ...);
  };
  if (!kept(&Ops::add, &Ops::rms_norm)) whole.add_rms_norm = nullptr;
  if (!kept(&Ops::matmul)) whole.qkv_matmul = nullptr;
  if (!kept(&Ops::rms_norm, &Ops::rope, &Ops::kv_write)) whole.qk_norm_rope_kv_write = nullptr;
  if (!kept(&Ops::matmul, &Ops::silu_mul)) whole.gate_up_silu = nullptr;
  return whole;
}

}  // namespace lockstep
