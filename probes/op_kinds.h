// Every kind of op that makes a tensor: it decides the oracle and the error budget.
//
// To add one: its name and its row here, its exact result in reference/oracle.cc, and what one
// rounding allows in src/judge/ops.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lockstep {

enum class OpKind : uint8_t {
  gather,             // rows copied by index
  angles,             // cosines and sines of the rotary angles
  norm,               // RMSNorm over the last axis
  linear,             // x W^T (+ b)
  rope,               // rotary embedding
  cache,              // K and V as read back through the page table
  partial_attention,  // the same over each share of the keys
  log_sum_exp,        // the logarithm of the sum that each share is divided by
  attention,          // softmax(q K^T) V
  silu_mul,           // silu(gate) * up
  add,                // residual addition
  argmax,             // index of the largest logit
  top_k,              // indices of the k largest logits of a router
  softmax,            // weights of the chosen experts
  expert_linear,      // x W^T with the weight of each chosen expert
  weighted_sum,       // of what the chosen experts made
};

struct OpKindRow {
  OpKind kind;
  const char* name;            // as in reports and files of limits
  bool makes_indices = false;  // its result is int32, exact by the op's inputs alone
  bool has_matrix = false;     // it multiplies rows by a weight matrix
  bool attends = false;        // it reads the K and V of its rows' request
};

inline constexpr auto kOpKinds = std::to_array<OpKindRow>({
    {OpKind::gather, "gather"},
    {OpKind::angles, "angles"},
    {OpKind::norm, "norm"},
    {OpKind::linear, "linear", false, true},
    {OpKind::rope, "rope"},
    {OpKind::cache, "cache"},
    {OpKind::partial_attention, "partial_attention", false, false, true},
    {OpKind::log_sum_exp, "log_sum_exp", false, false, true},
    {OpKind::attention, "attention", false, false, true},
    {OpKind::silu_mul, "silu_mul"},
    {OpKind::add, "add"},
    {OpKind::argmax, "argmax", true},
    {OpKind::top_k, "top_k", true},
    {OpKind::softmax, "softmax"},
    {OpKind::expert_linear, "expert_linear", false, true},
    {OpKind::weighted_sum, "weighted_sum"},
});

// Whether each row stands where its kind says; a kind without a row is seen by the points that have
// it (points.h).
consteval bool op_kinds_in_order() {
  for (size_t i = 0; i < kOpKinds.size(); ++i)
    if (kOpKinds[i].kind != static_cast<OpKind>(i)) return false;
  return true;
}
static_assert(op_kinds_in_order(), "the rows of kOpKinds are in the order of OpKind");

constexpr const OpKindRow& row_of(OpKind kind) { return kOpKinds[static_cast<size_t>(kind)]; }
constexpr const char* name_of(OpKind kind) { return row_of(kind).name; }

}  // namespace lockstep
