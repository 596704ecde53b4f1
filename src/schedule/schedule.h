// A decode step as a persistent kernel runs it: a list of instructions, a queue of them for every
// multiprocessor, and counters that an instruction waits for and raises. A schedule is data: made
// here of a model's sizes, or read from JSON that somebody else's compiler wrote.
//
//   a model's sizes -> make_schedule |
//                                    | -> Schedule -> check_schedule (checker.h) -> findings
//   JSON of theirs  -> read_schedule |
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/names.h"

namespace lockstep {

// The work of an instruction. Names and cuts are those of the megakernels of Hazy Research ("Look
// Ma, No Bubbles", 2025), with the QK-norm of Qwen3 within the first; experts are cut as an MLP is,
// by what is chosen and not by expert, for which ones compute is known within the step. `other`: a
// list made elsewhere has more; then the list says what each reads and writes.
enum class Opcode : uint8_t {
  norm_qkv_rope_append,
  partial_attention,
  attention_reduction,
  o_residual,
  norm_gate_up_silu,
  down_residual,
  norm_route,
  expert_gate_up_silu,
  expert_down,
  combine_residual,
  norm_head,
  other,
};
template <>
inline constexpr auto kNamesOf<Opcode> = std::to_array<const char*>(
    {"norm_qkv_rope_append", "partial_attention", "attention_reduction", "o_residual",
     "norm_gate_up_silu", "down_residual", "norm_route", "expert_gate_up_silu", "expert_down",
     "combine_residual", "norm_head", "other"});

// The sizes of the model that a step is cut along, in numbers of a row (one token of one request).
struct ScheduledModel {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t intermediate = 0;
  int64_t vocab = 0;
  bool qk_norm = false;  // a norm over each head of q and k, so that no instruction may split one

  // Experts in place of the MLP of some layers: each token has `chosen` of them.
  int64_t experts = 0, chosen = 0, expert_intermediate = 0;
  std::vector<int> expert_layers;

  bool has_experts(int layer) const { return std::ranges::count(expert_layers, layer) > 0; }
  int64_t group() const { return heads / kv_heads; }  // query heads of one KV head
};

// A tensor of the step, in numbers of one row.
struct ScheduledTensor {
  std::string point;  // "attn.out"; also "attn.partial" and "attn.lse", before they are merged
  int layer = -1;     // -1: of no layer
  int64_t width = 0;
  // 0: each number is written once. n: each is the sum of n shares, added in any order.
  int64_t shares = 0;
  // There before the step begins, as the embedding: the first tensor of its memory.
  bool given = false;
  // Memory that it lies in, from its beginning. Tensors of one memory follow each other there in
  // the order of the list: who writes one destroys those before it.
  std::string memory;
};

// The numbers [begin, end) of a tensor.
struct Span {
  int tensor = 0;  // its place in Schedule::tensors
  int64_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

struct Instruction {
  // One wait for a counter, or one raise of it.
  struct CounterUse {
    int counter = 0;
    int64_t value =
        0;  // of a wait: it lasts until the counter is at least that; of a raise: by that
  };

  int id = 0;  // what findings call it: its own in a list made elsewhere
  int queue = 0;
  Opcode opcode = Opcode::other;
  std::string name;  // of the opcode, as the list has it
  int layer = -1;
  // Its part: rows of the weights [begin, end), of experts those of the first choice, then those of
  // the second; of partial_attention and attention_reduction KV heads.
  int64_t begin = 0, end = 0;
  // The share of the pages that partial_attention reads, and of the sum that down_residual adds.
  int64_t share = 0;
  std::vector<Span> reads, writes;
  std::vector<CounterUse> waits, raises;
};

// A list has no more of them, whether it is made or read.
inline constexpr int kMostQueues = 1 << 16, kMostShares = 1 << 16;

// An instruction begins when those before it in its queue have ended and all its waits are over;
// then it reads, writes, and at its end raises its counters, which begin at 0 and never fall.
struct Schedule {
  ScheduledModel model;
  int queues = 0;
  int64_t kv_shares = 1;    // shares of the pages, each with a softmax of its own
  int64_t down_shares = 1;  // shares of the sum of mlp.down
  std::vector<ScheduledTensor> tensors;
  std::vector<std::string> counters;      // a name each
  std::vector<Instruction> instructions;  // of one queue in their order

  // Its place in tensors. Throws Error where there is none.
  int tensor(std::string_view point, int layer) const;
};

// "instruction 1423 (norm_qkv_rope_append, layer 3, rows 256..383)".
std::string said(const Instruction& instruction);

struct Effects {
  std::vector<Span> reads, writes;
};
// The effects of an instruction by its opcode, layer, rows and share: nothing
// for `other`. Throws Error where it is outside the model, as misfit_of() says ("": it is not).
std::string misfit_of(const Schedule& schedule, const Instruction& instruction);
Effects effects_of(const Schedule& schedule, const Instruction& instruction);

// The tensors of a step of that model, in the order in which they are computed. The stream of all
// layers is one memory, to which each half of a layer adds, and so is each kind of temporary.
std::vector<ScheduledTensor> tensors_of(const ScheduledModel& model, int64_t kv_shares,
                                        int64_t down_shares);

}  // namespace lockstep
