// Ops that do what some ops of the table do one after the other, to the bit: less to launch, and
// less to move. What lies between the pieces can still be seen: each tensor of it is an output that
// may be empty, a tap. A table has none of them, or some; the model calls the pieces where it has
// none.
#pragma once

#include <functional>
#include <span>

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"
#include "kernels/kv_cache.h"

namespace lockstep {

struct Ops;

// sum = add(a, b), which is then normalised: rms_norm(sum).
struct AddNormInput {
  TensorView sum;  // [tokens, width], an output
  TensorView a, b;
  TensorView weight;  // [width]
  float eps = 0;
};

// One matmul of several with the same x.
struct Linear {
  TensorView out;     // [tokens, n]
  TensorView weight;  // [n, k]
  TensorView bias;    // [n] or empty
};

// What lies between the products of q, k and v and the attention: rms_norm of q and k over
// head_dim, rope of both, kv_write.
struct QkNormRopeKvWrite {
  // Of all tokens, as the pieces take them:
  TensorView q, k, v;
  TensorView q_weight, k_weight;  // of the norms; empty: there are none
  float eps = 0;
  TensorView cos, sin, positions, slots;
  // Outputs:
  TensorView q_rope;
  KvCache cache;
  TensorView q_norm, k_norm, k_rope;  // taps
};

struct FusedOps {
  // out = rms_norm(sum) of the sum that it makes, which may be in the place of `a`.
  std::function<void(const OpContext&, TensorView out, const AddNormInput& input)> add_rms_norm;
  // Every out = matmul(x, weight, bias). With `input`, which may be null, x is an output too: the
  // norm of the sum that it makes, apart from `a` and `b`.
  std::function<void(const OpContext&, std::span<const Linear> all, TensorView x,
                     const AddNormInput* input)>
      qkv_matmul;
  std::function<void(const OpContext&, const QkNormRopeKvWrite& a)> qk_norm_rope_kv_write;
  // out = silu_mul(gate, up) of gate = matmul(x, gate_weight) and up = matmul(x, up_weight), which
  // are taps. `input` as above.
  std::function<void(const OpContext&, TensorView out, TensorView x, TensorView gate_weight,
                     TensorView up_weight, TensorView gate, TensorView up,
                     const AddNormInput* input)>
      gate_up_silu;
  // The table whose ops are the pieces; borrowed. Null where there are no fused ops.
  const Ops* pieces = nullptr;
};

// The fused ops of a table whose pieces are all still those that they were made of. Where one has
// been replaced, by a user's kernel, a seeded fault or a substitution, what contains it is left
// out, so that the model calls what replaces it. Where there is no add_rms_norm there is no
// `input`.
FusedOps whole_fused_ops(const Ops& ops);

}  // namespace lockstep
