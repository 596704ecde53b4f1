// Fused ops: one launch in the place of several ops of the table, with the same bits. The tensors
// between the pieces can still be observed: each is an output that may be empty, a tap. A table has
// some fused ops or none; the model calls the pieces where it has none.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"
#include "kernels/kv_cache.h"
#include "kernels/paged_attention.h"

namespace lockstep {

struct DecodeStep;  // decode_step.h
struct Ops;

// The input of a fused norm: rms_norm(sum) of sum = add(a, b).
struct AddNormInput {
  TensorView sum;  // [tokens, width], an output
  TensorView a, b;
  TensorView weight;  // [width]
  float eps = 0;
};

// One matmul of several with the same x.
struct Linear {
  TensorView out;     // [tokens, n]
  WeightView weight;  // [n, k], plain
  TensorView bias;    // [n] or empty
};

// The ops between the products of q, k and v and the attention: rms_norm of q and k over head_dim,
// rope of both, kv_write.
struct QkNormRopeKvWrite {
  // Inputs, for all tokens, as the pieces take them:
  TensorView q, k, v;
  TensorView q_weight, k_weight;  // of the norms; empty: there are none
  float eps = 0;
  TensorView cos, sin, positions, slots;
  // Outputs:
  TensorView q_rope;
  KvCache cache;
  TensorView q_norm, k_norm, k_rope;  // taps
};

// A whole layer without experts, from the residual stream to the residual stream: norm, attention
// over the cache, add, norm, MLP, add. Shapes are those of its pieces, each in its own header.
struct WholeLayer {
  // Inputs:
  TensorView x;  // [tokens, hidden], the stream
  TensorView attn_norm;
  WeightView q, k, v;
  TensorView q_bias, k_bias, v_bias;  // empty: there are none
  TensorView q_norm, k_norm;          // the same
  WeightView o;
  TensorView o_bias;  // the same
  TensorView mlp_norm;
  WeightView gate, up, down;
  float eps = 0;
  TensorView cos, sin, positions, slots;
  AttentionBatch batch;
  float scale = 0;
  int64_t window = 0;
  // Outputs:
  TensorView out;  // [tokens, hidden], apart from x
  KvCache cache;
  TensorView k_rope, v_kept;  // taps: what the slots of the cache hold afterwards
};

// A fused op, by the name that a user's library exports it under (with the prefix lockstep_), and
// the points inside of it, which nobody can see of a user's.
struct FusedRow {
  std::string_view name;
  std::array<std::string_view, 14> hidden;  // those left over are empty
};
inline constexpr FusedRow kAddRmsNorm = {"add_rms_norm", {}};
inline constexpr FusedRow kQkvMatmul = {"qkv_matmul", {}};
inline constexpr FusedRow kQkNormRopeKvWrite = {"qk_norm_rope_kv_write",
                                                {"attn.q_norm", "attn.k_norm"}};
inline constexpr FusedRow kGateUpSilu = {"gate_up_silu", {"mlp.gate", "mlp.up"}};
// It stands in the place of all others within a layer. K and V are seen where it writes them.
inline constexpr FusedRow kDecoderLayer = {
    "decoder_layer",
    {"attn.norm", "attn.q", "attn.k", "attn.q_norm", "attn.k_norm", "attn.q_rope", "attn.out",
     "attn.o", "attn.residual", "mlp.norm", "mlp.gate", "mlp.up", "mlp.act", "mlp.down"}};
inline constexpr std::array kFusedOps = {kAddRmsNorm, kQkvMatmul, kQkNormRopeKvWrite, kGateUpSilu,
                                         kDecoderLayer};

struct FusedOps {
  // out = rms_norm(sum); it writes the sum too, which may be in the place of `a`.
  std::function<void(const OpContext&, TensorView out, const AddNormInput& input)> add_rms_norm;
  // Every out = matmul(x, weight, bias). With `input`, which may be null, x is an output too: the
  // norm of the sum, which lies apart from `a` and `b`.
  std::function<void(const OpContext&, std::span<const Linear> all, TensorView x,
                     const AddNormInput* input)>
      qkv_matmul;
  std::function<void(const OpContext&, const QkNormRopeKvWrite& a)> qk_norm_rope_kv_write;
  // out = silu_mul(gate, up) of gate = matmul(x, gate_weight) and up = matmul(x, up_weight), which
  // are taps; `input` as above.
  std::function<void(const OpContext&, TensorView out, TensorView x, WeightView gate_weight,
                     WeightView up_weight, TensorView gate, TensorView up,
                     const AddNormInput* input)>
      gate_up_silu;
  // A user's alone.
  std::function<void(const OpContext&, const WholeLayer& layer)> decoder_layer;
  // A whole decode step, for who asks for it by name (src/model/persistent_executor.h): its sums
  // are in an order of its own, and its bits not those of its pieces.
  std::function<void(const OpContext&, const DecodeStep& step)> decode_step;
  std::function<int64_t(const DecodeStep& step)> decode_step_packed;
  // The table whose ops are the pieces; borrowed. Null where there are no fused ops but a user's.
  const Ops* pieces = nullptr;

  // By name, those that are a user's. They leave the taps of points inside of them as they are,
  // and get no `input`.
  std::vector<std::string_view> of_user;
  bool is_of_user(const FusedRow& row) const;
  // The points inside of a user's.
  std::vector<std::string_view> hidden() const;
  // The user's alone.
  FusedOps users_alone() const;
};

// The fused ops of a table whose pieces are all in place. Where a user's kernel, a seeded fault or
// a substitution has replaced a piece, the fused op that contains it is left out, so that the model
// calls the replacement. A user's fused op is never left out. Without add_rms_norm no fused op gets
// an `input`.
FusedOps whole_fused_ops(const Ops& ops);

}  // namespace lockstep
