#include "kernels/fused.h"

#include <algorithm>

#include "kernels/ops.h"

namespace lockstep {
namespace {

// Whether both are the same plain function; what wraps one is another. A fused op may pass over its
// pieces only where they are the functions that it was made of.
template <typename Signature>
bool same(const std::function<Signature>& a, const std::function<Signature>& b) {
  const auto* in_a = a.template target<Signature*>();
  const auto* in_b = b.template target<Signature*>();
  return in_a != nullptr && in_b != nullptr && *in_a == *in_b;
}

}  // namespace

bool FusedOps::is_of_user(const FusedRow& row) const {
  return std::ranges::count(of_user, row.name) > 0;
}

std::vector<std::string_view> FusedOps::hidden() const {
  std::vector<std::string_view> points;
  for (const FusedRow& row : kFusedOps)
    if (is_of_user(row))
      std::ranges::copy_if(row.hidden, std::back_inserter(points),
                           [](std::string_view point) { return !point.empty(); });
  return points;
}

FusedOps FusedOps::users_alone() const {
  FusedOps users = *this;
  users.pieces = nullptr;
  if (!is_of_user(kAddRmsNorm)) users.add_rms_norm = nullptr;
  if (!is_of_user(kQkvMatmul)) users.qkv_matmul = nullptr;
  if (!is_of_user(kQkNormRopeKvWrite)) users.qk_norm_rope_kv_write = nullptr;
  if (!is_of_user(kGateUpSilu)) users.gate_up_silu = nullptr;
  users.decode_step = nullptr;
  return users;
}

// A fused op of ours stands for its pieces. Where one of them was replaced (a user's op, a fault),
// the fused one would pass over the replacement, and is left out.
FusedOps whole_fused_ops(const Ops& ops) {
  FusedOps whole = ops.fused;
  if (whole.pieces == nullptr) return whole.users_alone();
  const auto kept = [&](const FusedRow& row, const auto... piece) {
    return whole.is_of_user(row) || (same(ops.*piece, whole.pieces->*piece) && ...);
  };
  if (!kept(kAddRmsNorm, &Ops::add, &Ops::rms_norm)) whole.add_rms_norm = nullptr;
  if (!kept(kQkvMatmul, &Ops::matmul)) whole.qkv_matmul = nullptr;
  if (!kept(kQkNormRopeKvWrite, &Ops::rms_norm, &Ops::rope, &Ops::kv_write))
    whole.qk_norm_rope_kv_write = nullptr;
  if (!kept(kGateUpSilu, &Ops::matmul, &Ops::silu_mul)) whole.gate_up_silu = nullptr;
  bool all = whole.of_user.empty();
  for_each_op([&](const auto& row) { all &= same(ops.*row.entry, whole.pieces->*row.entry); });
  if (!all) whole.decode_step = nullptr;
  return whole;
}

}  // namespace lockstep
