// Every place in a model where a tensor can be observed, in graph order.
//
// To add one: add a row here, then `show("name", tensor)` where the tensor exists in src/model and
// in reference/. Graphs are made of the rows (qwen_graph.h). If its `op` is a new one, see
// op_kinds.h. tests/engine/engine_test.cc and tests/reference/model_test.cc fail for a point that
// their model does not show.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "kernels/base/dtype.h"
#include "kernels/base/names.h"
#include "probes/op_kinds.h"

namespace lockstep {

// How strictly the op's result is held to the exact one.
enum class NodeClass : uint8_t {
  exact,        // bit for bit
  elementwise,  // one rounding and a few fp32 steps
  reduction,    // one rounding and an accumulation over n products
};
template <>
inline constexpr auto kNamesOf<NodeClass> = std::to_array<const char*>({"exact", "elementwise",
                                                                        "reduction"});

// The thing that a row of the tensor stands for.
enum class RowDomain : uint8_t {
  token,  // of the pass
  logit,  // a token of the pass that gets logits
  cache,  // a position of a request that the pass reads, whichever pass wrote it
};

enum class PointDType : uint8_t { of_the_run, f32, i32 };

struct Point {
  enum class Recording : uint8_t {
    of_the_pass,     // one tensor of all rows, its digest of its numbers
    of_the_request,  // one tensor a request, its digest of hashes of its rows, most of which are
                     // old
  };

  std::string_view name;   // stable: it is the dataset's name in traces
  std::string_view shape;  // for people: what each axis is
  OpKind op;
  NodeClass node_class;
  bool per_layer;
  // The points whose tensors the op reads, in the order of its arguments, as far as the model has
  // them; of "a or b" the first that it has. "stream" is the residual stream that enters the layer.
  std::string_view reads;
  // The checkpoint's tensor, after "model.layers.<i>." for points of a layer and after
  // "mlp.experts.<e>." for those of an expert, without ".weight".
  std::string_view weight = "";
  // Which models, or layers, have it: "with QK-norm", "with experts", "without experts", "over
  // ranks" (of which it shows what each adds to a sum), "in shares" (of an executor that attends to
  // shares of the pages, each with a softmax of its own, and merges them); "": all.
  std::string_view models = "";
  int head_axis = -1;  // the axis of heads; -1: none
  RowDomain rows = RowDomain::token;
  PointDType dtype = PointDType::of_the_run;
  Recording recording = Recording::of_the_pass;
  bool optional = false;         // an engine need not show it
  std::string_view column = "";  // its name above a column of a map: "qr" of attn.q_rope

  bool is_cache() const { return rows == RowDomain::cache; }
  bool is_of_logits() const { return rows == RowDomain::logit; }
  // Whether attention is merged of it, where an executor attends in shares.
  constexpr bool is_of_shares() const { return models == "in shares"; }
  // The dtype of its tensors in a run of that dtype.
  constexpr DType dtype_in(DType run) const {
    if (dtype == PointDType::of_the_run) return run;
    return dtype == PointDType::f32 ? DType::f32 : DType::i32;
  }
  // Index into kPoints, in constant time for the points of this table. Another library has a table
  // of its own, whose points are looked up by name.
  int order() const;
  bool operator==(const Point& other) const { return name == other.name; }
};

// clang-format off
inline constexpr auto kPoints = [] {
  using enum OpKind;
  using enum NodeClass;
  return std::to_array<Point>({
      {.name = "embed.partial", .shape = "token, rank, hidden", .op = gather, .node_class = exact,
       .per_layer = false, .reads = "", .weight = "model.embed_tokens", .models = "over ranks",
       .column = "em+"},
      {.name = "embed", .shape = "token, hidden", .op = gather, .node_class = exact,
       .per_layer = false, .reads = "embed.partial", .weight = "model.embed_tokens",
       .column = "emb"},
      {.name = "rope.cos", .shape = "token, pair", .op = angles, .node_class = elementwise,
       .per_layer = false, .reads = "", .dtype = PointDType::f32, .optional = true,
       .column = "cos"},
      {.name = "rope.sin", .shape = "token, pair", .op = angles, .node_class = elementwise,
       .per_layer = false, .reads = "", .dtype = PointDType::f32, .optional = true,
       .column = "sin"},
      {.name = "attn.norm", .shape = "token, hidden", .op = norm, .node_class = elementwise,
       .per_layer = true, .reads = "stream", .weight = "input_layernorm", .column = "nrm"},
      {.name = "attn.q", .shape = "token, head, dim", .op = linear, .node_class = reduction,
       .per_layer = true, .reads = "attn.norm", .weight = "self_attn.q_proj", .head_axis = 1,
       .column = "q"},
      {.name = "attn.k", .shape = "token, kv head, dim", .op = linear, .node_class = reduction,
       .per_layer = true, .reads = "attn.norm", .weight = "self_attn.k_proj", .head_axis = 1,
       .column = "k"},
      {.name = "attn.v", .shape = "token, kv head, dim", .op = linear, .node_class = reduction,
       .per_layer = true, .reads = "attn.norm", .weight = "self_attn.v_proj", .head_axis = 1,
       .column = "v"},
      {.name = "attn.q_norm", .shape = "token, head, dim", .op = norm, .node_class = elementwise,
       .per_layer = true, .reads = "attn.q", .weight = "self_attn.q_norm", .models = "with QK-norm",
       .head_axis = 1, .column = "qn"},
      {.name = "attn.k_norm", .shape = "token, kv head, dim", .op = norm, .node_class = elementwise,
       .per_layer = true, .reads = "attn.k", .weight = "self_attn.k_norm", .models = "with QK-norm",
       .head_axis = 1, .column = "kn"},
      {.name = "attn.q_rope", .shape = "token, head, dim", .op = rope, .node_class = elementwise,
       .per_layer = true, .reads = "attn.q_norm or attn.q, rope.cos, rope.sin", .head_axis = 1,
       .column = "qr"},
      {.name = "attn.k_rope", .shape = "token, kv head, dim", .op = rope, .node_class = elementwise,
       .per_layer = true, .reads = "attn.k_norm or attn.k, rope.cos, rope.sin", .head_axis = 1,
       .column = "kr"},
      {.name = "attn.kv", .shape = "position, k|v, kv head, dim", .op = cache, .node_class = exact,
       .per_layer = true, .reads = "attn.k_rope, attn.v", .head_axis = 2, .rows = RowDomain::cache,
       .recording = Point::Recording::of_the_request, .column = "kv"},
      // Share s of n has pages [P s / n, P (s + 1) / n) of the P pages of its request. attn.partial
      // is softmax(q k^T scale) v over the keys of the share that the query sees, so normalised by
      // the share's own sum; 0 where it sees none. attn.lse is the natural logarithm of the sum of
      // exp(q k scale) over them; -Inf where it sees none. Both are rounded once, to fp32, whatever
      // the run's dtype. attn.out is their mean by weights exp(attn.lse), and judged by what shares
      // read.
      {.name = "attn.partial", .shape = "token, share, head, dim", .op = partial_attention,
       .node_class = reduction, .per_layer = true, .reads = "attn.q_rope, attn.kv",
       .models = "in shares", .head_axis = 2, .dtype = PointDType::f32, .optional = true,
       .column = "par"},
      {.name = "attn.lse", .shape = "token, share, head", .op = log_sum_exp,
       .node_class = reduction, .per_layer = true, .reads = "attn.q_rope, attn.kv",
       .models = "in shares", .head_axis = 2, .dtype = PointDType::f32, .optional = true,
       .column = "lse"},
      {.name = "attn.out", .shape = "token, head, dim", .op = attention, .node_class = reduction,
       .per_layer = true, .reads = "attn.q_rope, attn.kv, attn.partial, attn.lse", .head_axis = 1,
       .column = "att"},
      {.name = "attn.o_partial", .shape = "token, rank, hidden", .op = linear,
       .node_class = reduction, .per_layer = true, .reads = "attn.out",
       .weight = "self_attn.o_proj", .models = "over ranks", .column = "o+"},
      {.name = "attn.o", .shape = "token, hidden", .op = linear, .node_class = reduction,
       .per_layer = true, .reads = "attn.o_partial or attn.out",
       .weight = "self_attn.o_proj", .column = "o"},
      {.name = "attn.residual", .shape = "token, hidden", .op = add, .node_class = exact,
       .per_layer = true, .reads = "stream, attn.o", .column = "res"},
      {.name = "mlp.norm", .shape = "token, hidden", .op = norm, .node_class = elementwise,
       .per_layer = true, .reads = "attn.residual", .weight = "post_attention_layernorm",
       .column = "nrm"},
      {.name = "mlp.gate", .shape = "token, intermediate", .op = linear, .node_class = reduction,
       .per_layer = true, .reads = "mlp.norm", .weight = "mlp.gate_proj",
       .models = "without experts", .column = "gat"},
      {.name = "mlp.up", .shape = "token, intermediate", .op = linear, .node_class = reduction,
       .per_layer = true, .reads = "mlp.norm", .weight = "mlp.up_proj",
       .models = "without experts", .column = "up"},
      {.name = "mlp.act", .shape = "token, intermediate", .op = silu_mul, .node_class = elementwise,
       .per_layer = true, .reads = "mlp.gate, mlp.up", .models = "without experts",
       .column = "act"},
      {.name = "mlp.down_partial", .shape = "token, rank, hidden", .op = linear,
       .node_class = reduction, .per_layer = true, .reads = "mlp.act", .weight = "mlp.down_proj",
       .models = "over ranks, without experts", .column = "dw+"},
      {.name = "mlp.down", .shape = "token, hidden", .op = linear, .node_class = reduction,
       .per_layer = true, .reads = "mlp.down_partial or mlp.act", .weight = "mlp.down_proj",
       .models = "without experts", .column = "dwn"},
      {.name = "mlp.router", .shape = "token, expert", .op = linear, .node_class = reduction,
       .per_layer = true, .reads = "mlp.norm", .weight = "mlp.gate", .models = "with experts",
       .column = "rtr"},
      {.name = "mlp.experts", .shape = "token, choice", .op = top_k, .node_class = exact,
       .per_layer = true, .reads = "mlp.router", .models = "with experts",
       .dtype = PointDType::i32, .column = "exp"},
      {.name = "mlp.weights", .shape = "token, choice", .op = softmax, .node_class = elementwise,
       .per_layer = true, .reads = "mlp.router, mlp.experts", .models = "with experts",
       .column = "wts"},
      {.name = "mlp.expert_gate", .shape = "token, choice, intermediate", .op = expert_linear,
       .node_class = reduction, .per_layer = true, .reads = "mlp.norm, mlp.experts",
       .weight = "gate_proj", .models = "with experts", .column = "egt"},
      {.name = "mlp.expert_up", .shape = "token, choice, intermediate", .op = expert_linear,
       .node_class = reduction, .per_layer = true, .reads = "mlp.norm, mlp.experts",
       .weight = "up_proj", .models = "with experts", .column = "eup"},
      {.name = "mlp.expert_act", .shape = "token, choice, intermediate", .op = silu_mul,
       .node_class = elementwise, .per_layer = true, .reads = "mlp.expert_gate, mlp.expert_up",
       .models = "with experts", .column = "eac"},
      {.name = "mlp.expert_down_partial", .shape = "token, rank, choice, hidden",
       .op = expert_linear, .node_class = reduction, .per_layer = true,
       .reads = "mlp.expert_act, mlp.experts", .weight = "down_proj",
       .models = "over ranks, with experts", .column = "ed+"},
      {.name = "mlp.expert_down", .shape = "token, choice, hidden", .op = expert_linear,
       .node_class = reduction, .per_layer = true,
       .reads = "mlp.expert_down_partial or mlp.expert_act, mlp.experts",
       .weight = "down_proj", .models = "with experts", .column = "edn"},
      {.name = "mlp.combine", .shape = "token, hidden", .op = weighted_sum, .node_class = reduction,
       .per_layer = true, .reads = "mlp.expert_down, mlp.weights, mlp.experts",
       .models = "with experts", .column = "cmb"},
      {.name = "mlp.residual", .shape = "token, hidden", .op = add, .node_class = exact,
       .per_layer = true, .reads = "attn.residual, mlp.combine or mlp.down", .column = "res"},
      {.name = "final.norm", .shape = "token, hidden", .op = norm, .node_class = elementwise,
       .per_layer = false, .reads = "stream", .weight = "model.norm", .column = "nrm"},
      {.name = "logits", .shape = "token, vocab", .op = linear, .node_class = reduction,
       .per_layer = false, .reads = "final.norm", .weight = "lm_head", .rows = RowDomain::logit,
       .column = "lgt"},
      {.name = "token", .shape = "token", .op = argmax, .node_class = exact, .per_layer = false,
       .reads = "logits", .rows = RowDomain::logit, .dtype = PointDType::i32, .column = "tok"},
  });
}();
// clang-format on

// Every kind of op that a point has is a row of kOpKinds, and maps have three characters a column.
static_assert([] {
  for (const Point& p : kPoints)
    if (static_cast<size_t>(p.op) >= kOpKinds.size() || p.column.empty() || p.column.size() > 3)
      return false;
  return true;
}());

// The point of that name; a name that is not in the table does not compile.
consteval const Point& point(std::string_view name) {
  for (const Point& p : kPoints)
    if (p.name == name) return p;
  throw "no such probe point";
}

// The same at run time, for names that come from files and options; null when there is none.
const Point* find_point(std::string_view name);

}  // namespace lockstep
