// The table of ops: the seam between the model and the arithmetic.
//
// The model calls every op through a `const Ops&`. `cpu_ops()` is the default table; a user's
// kernel, a seeded fault and a substitution are each a copy of a table in which one entry wraps the
// entry that was there.
//
// Every op but matmul and expert_matmul is batch-invariant: a row's bits depend on its own inputs
// alone, not on the rest of the pass. `lockstep run --modes` holds them to it
// (src/judge/mode_comparer.h).
//
// To add an op: write its contract in kernels/<op>.h, its checks and CPU code in kernels/<op>.cc,
// its CUDA twin in kernels/<op>.cu, and name it in kernels/CMakeLists.txt, here (an entry of `Ops`
// and a row of kOps) and in cuda/cuda_ops.cu; and, if a user's kernel may stand in its place, in
// lockstep_ops.h.
// An op that joins several goes into fused.h, its pieces in fused.cc. tests/kernels/<op>_test.cc is
// its test, cuda_<op>_test.cc that of its twin. What it makes is shown at a point: probes/points.h.
#pragma once

#include <array>
#include <functional>
#include <string_view>
#include <tuple>
#include <utility>

#include "kernels/add.h"
#include "kernels/argmax.h"
#include "kernels/experts.h"
#include "kernels/fused.h"
#include "kernels/gather_rows.h"
#include "kernels/kv_cache.h"
#include "kernels/matmul.h"
#include "kernels/paged_attention.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/routing.h"
#include "kernels/silu_mul.h"

namespace lockstep {

struct Ops {
  std::function<decltype(lockstep::gather_rows)> gather_rows;
  std::function<decltype(lockstep::rms_norm)> rms_norm;
  std::function<decltype(lockstep::matmul)> matmul;
  std::function<decltype(lockstep::rope)> rope;
  std::function<decltype(lockstep::kv_write)> kv_write;
  std::function<decltype(lockstep::kv_gather)> kv_gather;
  std::function<decltype(lockstep::paged_attention)> paged_attention;
  std::function<decltype(lockstep::silu_mul)> silu_mul;
  std::function<decltype(lockstep::add)> add;
  std::function<decltype(lockstep::argmax)> argmax;
  std::function<decltype(lockstep::top_k)> top_k;
  std::function<decltype(lockstep::routing_weights)> routing_weights;
  std::function<decltype(lockstep::expert_matmul)> expert_matmul;
  std::function<decltype(lockstep::weighted_sum)> weighted_sum;
  FusedOps fused;  // made of those above
};

// One op of the table.
template <typename Signature>
struct OpRow {
  // A user's library exports lockstep_<name>. routing_weights is "softmax_of" there, because the C
  // interface keeps the names that it was published with.
  std::string_view name;
  std::function<Signature> Ops::*entry;
  Signature* on_cpu;
  // The tensors that it reads, in the order of its arguments; those left over are empty.
  std::array<std::string_view, 6> inputs;
};

// Compilers before P1816 deduce nothing for aggregates.
template <typename Signature>
OpRow(std::string_view, std::function<Signature> Ops::*, Signature*,
      std::array<std::string_view, 6>) -> OpRow<Signature>;

// All ops. Whatever is done with each of them visits this list, so that none is forgotten.
inline constexpr auto kOps = std::tuple{
    OpRow{"gather_rows", &Ops::gather_rows, gather_rows, {"index", "table"}},
    OpRow{"rms_norm", &Ops::rms_norm, rms_norm, {"x", "weight"}},
    OpRow{"matmul", &Ops::matmul, matmul, {"x", "weight", "bias"}},
    OpRow{"rope", &Ops::rope, rope, {"x", "cos", "sin", "positions"}},
    OpRow{"kv_write", &Ops::kv_write, kv_write, {"k", "v", "slots"}},
    OpRow{"kv_gather", &Ops::kv_gather, kv_gather, {"cache.k", "cache.v", "page_table"}},
    OpRow{"paged_attention",
          &Ops::paged_attention,
          paged_attention,
          {"q", "cache.k", "cache.v", "query_start", "context_length", "page_table"}},
    OpRow{"silu_mul", &Ops::silu_mul, silu_mul, {"gate", "up"}},
    OpRow{"add", &Ops::add, add, {"a", "b"}},
    OpRow{"argmax", &Ops::argmax, argmax, {"logits"}},
    OpRow{"top_k", &Ops::top_k, top_k, {"logits"}},
    OpRow{"softmax_of", &Ops::routing_weights, routing_weights, {"logits", "index"}},
    OpRow{"expert_matmul", &Ops::expert_matmul, expert_matmul, {"x", "index", "weights"}},
    OpRow{"weighted_sum", &Ops::weighted_sum, weighted_sum, {"x", "weights"}}};

static_assert(sizeof(Ops) ==
                  std::tuple_size_v<decltype(kOps)> * sizeof(Ops::add) + sizeof(FusedOps),
              "every entry of Ops needs a row of kOps");

// Calls visit(row) with each row of kOps, in their order.
template <typename Visit>
void for_each_op(Visit visit) {
  std::apply([&](const auto&... rows) { (visit(rows), ...); }, kOps);
}

// Puts around(op, context, arguments...) in the place of an entry of a table; `op` is what was
// there.
template <typename Signature, typename Around>
void wrap(std::function<Signature>& op, Around around) {
  // The entry that was there lives in the new one.
  op = [inner = std::move(op), around = std::move(around)](const OpContext& context,
                                                           const auto&... arguments) {
    around(inner, context, arguments...);
  };
}

// A table of its own for each caller, of plain functions; it may be copied and called by several
// threads.
Ops cpu_ops();

}  // namespace lockstep
