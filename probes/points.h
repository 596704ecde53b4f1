// Every place in a model where a tensor can be observed, in graph order.
//
// To add one: add a row here, then `show("name", tensor)` where the tensor exists in src/model and
// in reference/. If its `op` is a new one, say in reference/oracle.cc what it should be and in
// src/judge/budget.cc what one rounding allows. tests/engine/engine_test.cc and
// tests/reference/model_test.cc fail for a point that their model does not show.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lockstep {

// What kind of op makes the tensor: it decides the oracle and the error budget.
enum class OpKind : uint8_t {
  gather,         // rows copied by index
  angles,         // cosines and sines of the rotary angles, in fp32 whatever the run's dtype
  norm,           // RMSNorm over the last axis
  linear,         // x W^T (+ b)
  rope,           // rotary embedding
  cache,          // K and V as read back through the page table
  attention,      // softmax(q K^T) V
  silu_mul,       // silu(gate) * up
  add,            // residual addition
  argmax,         // index of the largest logit
  top_k,          // indices of the k largest logits of a router
  softmax,        // weights of the chosen experts
  expert_linear,  // x W^T with the weight of each chosen expert
  weighted_sum,   // of what the chosen experts made
};

// As in reports and files of limits. A kind that is missing here does not compile.
constexpr const char* name_of(OpKind op) {
  switch (op) {
    case OpKind::gather:
      return "gather";
    case OpKind::angles:
      return "angles";
    case OpKind::norm:
      return "norm";
    case OpKind::linear:
      return "linear";
    case OpKind::rope:
      return "rope";
    case OpKind::cache:
      return "cache";
    case OpKind::attention:
      return "attention";
    case OpKind::silu_mul:
      return "silu_mul";
    case OpKind::add:
      return "add";
    case OpKind::argmax:
      return "argmax";
    case OpKind::top_k:
      return "top_k";
    case OpKind::softmax:
      return "softmax";
    case OpKind::expert_linear:
      return "expert_linear";
    case OpKind::weighted_sum:
      return "weighted_sum";
  }
  return "";
}

// Whether the op's result is indices (int32), which are exact by the op's inputs alone.
constexpr bool makes_indices(OpKind op) { return op == OpKind::argmax || op == OpKind::top_k; }

// How strictly the op's result is held to the exact one.
enum class NodeClass : uint8_t {
  exact,        // bit for bit
  elementwise,  // one rounding and a few fp32 steps
  reduction,    // one rounding and an accumulation over n products
};

// Which models have the point: those with QK-norm, or, of a layer, those whose layer has one MLP
// for every token (dense) or experts that a router chooses from; or whose engine shows the rotary
// tables that it reads.
enum class Presence : uint8_t { always, qk_norm, dense, experts, rope_tables };

struct Point {
  std::string_view name;   // stable: it is the dataset's name in traces
  std::string_view shape;  // for people: what each axis is
  OpKind op;
  NodeClass node_class;
  bool per_layer;
  Presence presence;
  // Names of the points whose tensors the op reads. "stream" is the residual stream that enters the
  // layer: mlp.residual of the layer before, or embed. A name that this layer lacks stands for that
  // point's own first input (no QK-norm: attn.q_norm means attn.q), and mlp.combine for mlp.down.
  // Rotary tables that are not shown are left out.
  std::array<std::string_view, 3> inputs;
  // The checkpoint's tensor, after "model.layers.<i>." for points of a layer and after
  // "mlp.experts.<e>." for those of an expert, without ".weight".
  std::string_view weight;

  bool operator==(const Point& other) const { return name == other.name; }
};

// clang-format off
inline constexpr auto kPoints = [] {
  using enum OpKind;
  using enum NodeClass;
  using enum Presence;
  return std::to_array<Point>({
      {"embed", "token, hidden", gather, exact, false, always, {}, "model.embed_tokens"},
      {"rope.cos", "token, pair", angles, elementwise, false, rope_tables, {}, ""},
      {"rope.sin", "token, pair", angles, elementwise, false, rope_tables, {}, ""},
      {"attn.norm", "token, hidden", norm, elementwise, true, always, {"stream"},
       "input_layernorm"},
      {"attn.q", "token, head, dim", linear, reduction, true, always, {"attn.norm"},
       "self_attn.q_proj"},
      {"attn.k", "token, kv head, dim", linear, reduction, true, always, {"attn.norm"},
       "self_attn.k_proj"},
      {"attn.v", "token, kv head, dim", linear, reduction, true, always, {"attn.norm"},
       "self_attn.v_proj"},
      {"attn.q_norm", "token, head, dim", norm, elementwise, true, qk_norm, {"attn.q"},
       "self_attn.q_norm"},
      {"attn.k_norm", "token, kv head, dim", norm, elementwise, true, qk_norm, {"attn.k"},
       "self_attn.k_norm"},
      {"attn.q_rope", "token, head, dim", rope, elementwise, true, always,
       {"attn.q_norm", "rope.cos", "rope.sin"}, ""},
      {"attn.k_rope", "token, kv head, dim", rope, elementwise, true, always,
       {"attn.k_norm", "rope.cos", "rope.sin"}, ""},
      {"attn.kv", "position, k|v, kv head, dim", cache, exact, true, always,
       {"attn.k_rope", "attn.v"}, ""},
      {"attn.out", "token, head, dim", attention, reduction, true, always,
       {"attn.q_rope", "attn.kv"}, ""},
      {"attn.o", "token, hidden", linear, reduction, true, always, {"attn.out"},
       "self_attn.o_proj"},
      {"attn.residual", "token, hidden", add, exact, true, always, {"stream", "attn.o"}, ""},
      {"mlp.norm", "token, hidden", norm, elementwise, true, always, {"attn.residual"},
       "post_attention_layernorm"},
      {"mlp.gate", "token, intermediate", linear, reduction, true, dense, {"mlp.norm"},
       "mlp.gate_proj"},
      {"mlp.up", "token, intermediate", linear, reduction, true, dense, {"mlp.norm"},
       "mlp.up_proj"},
      {"mlp.act", "token, intermediate", silu_mul, elementwise, true, dense,
       {"mlp.gate", "mlp.up"}, ""},
      {"mlp.down", "token, hidden", linear, reduction, true, dense, {"mlp.act"}, "mlp.down_proj"},
      {"mlp.router", "token, expert", linear, reduction, true, experts, {"mlp.norm"}, "mlp.gate"},
      {"mlp.experts", "token, choice", top_k, exact, true, experts, {"mlp.router"}, ""},
      {"mlp.weights", "token, choice", softmax, elementwise, true, experts,
       {"mlp.router", "mlp.experts"}, ""},
      {"mlp.expert_gate", "token, choice, intermediate", expert_linear, reduction, true, experts,
       {"mlp.norm", "mlp.experts"}, "gate_proj"},
      {"mlp.expert_up", "token, choice, intermediate", expert_linear, reduction, true, experts,
       {"mlp.norm", "mlp.experts"}, "up_proj"},
      {"mlp.expert_act", "token, choice, intermediate", silu_mul, elementwise, true, experts,
       {"mlp.expert_gate", "mlp.expert_up"}, ""},
      {"mlp.expert_down", "token, choice, hidden", expert_linear, reduction, true, experts,
       {"mlp.expert_act", "mlp.experts"}, "down_proj"},
      {"mlp.combine", "token, hidden", weighted_sum, reduction, true, experts,
       {"mlp.expert_down", "mlp.weights", "mlp.experts"}, ""},
      {"mlp.residual", "token, hidden", add, exact, true, always, {"attn.residual", "mlp.combine"},
       ""},
      {"final.norm", "token, hidden", norm, elementwise, false, always, {"stream"}, "model.norm"},
      {"logits", "token, vocab", linear, reduction, false, always, {"final.norm"}, "lm_head"},
      {"token", "token", argmax, exact, false, always, {"logits"}, ""},
  });
}();
// clang-format on

// The point of that name; a name that is not in the table does not compile.
consteval const Point& point(std::string_view name) {
  for (const Point& p : kPoints)
    if (p.name == name) return p;
  throw "no such probe point";
}

// The same at run time, for names that come from files and options; null when there is none.
const Point* find_point(std::string_view name);

// Place in graph order, and index into kPoints.
inline int order_of(const Point& p) {
  return static_cast<int>(find_point(p.name) - kPoints.data());
}

}  // namespace lockstep
