// Waits are as few as order needs: within a layer attention waits for the heads that it reads
// alone, while o and what follows wait for everything before them, since they read whole rows, or
// write where the stream lies. Queues are dealt instructions in turn, without regard to how long
// each takes.
#include "src/schedule/make_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

constexpr int64_t kRows = 16;  // of a tile of the tensor cores, which no block splits

int64_t blocks_of(int64_t rows, int64_t block) { return (rows + block - 1) / block; }

// A block so wide that `rows` make at most as many blocks as there are queues.
int64_t block_for(int64_t rows, int64_t queues, int64_t multiple) {
  return blocks_of(blocks_of(rows, queues), multiple) * multiple;
}

// Writes the instructions of a step, phase after phase. A phase's counters are known to the next
// one by their places and by how high its instructions raise them.
//
//   qkv -> partial attention -> reduction -> o -> gate, up -> down -> next layer's qkv, or the head
//     by KV head      by KV head     all of a layer    all      all, for the stream is overwritten
//
// Of experts, after o: route -> gate, up -> down -> combine, each after all before it.
class Maker {
 public:
  Maker(const ScheduledModel& model, const ScheduleOptions& options)
      : queues_(options.queues), model_(model) {
    made_.model = model;
    made_.queues = options.queues;
    made_.kv_shares = options.kv_shares;
    made_.down_shares = options.down_shares;
    made_.tensors = tensors_of(model, options.kv_shares, options.down_shares);
  }

  Schedule made() {
    Instruction::CounterUse stream = {-1, 0};  // embed is given
    for (int layer = 0; layer < model_.layers; ++layer) {
      layer_ = layer;
      const Instruction::CounterUse attended = attention(stream);
      stream = model_.has_experts(layer) ? experts(attended) : mlp(attended);
    }
    layer_ = -1;
    const int64_t block = block_for(model_.vocab, queues_, kRows);
    for (int64_t row = 0; row < model_.vocab; row += block)
      add(Opcode::norm_head, row, std::min(row + block, model_.vocab), 0, {stream}, {});
    return std::move(made_);
  }

 private:
  // The counter that all of attn.residual raises.
  Instruction::CounterUse attention(const Instruction::CounterUse& stream) {
    const int64_t heads = model_.kv_heads, group = model_.group();
    const std::vector<int> qkv = counters("qkv", heads), partial = counters("partial", heads);
    const int reduced = counters("attention", 1).front(), residual = counters("o", 1).front();
    const int64_t dim = model_.head_dim;
    for (int64_t head = 0; head < model_.heads + 2 * heads; ++head) {
      // Rows of the stacked weights are q's heads, then k's, then v's: K and V of one KV head and
      // the queries of its group raise one counter, group + 2 in all.
      const int64_t of = head < model_.heads ? head / group : (head - model_.heads) % heads;
      add(Opcode::norm_qkv_rope_append, head * dim, (head + 1) * dim, 0, {stream}, {{qkv[of], 1}});
    }
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t share = 0; share < made_.kv_shares; ++share)
        add(Opcode::partial_attention, head, head + 1, share, {{qkv[head], group + 2}},
            {{partial[head], 1}});
    for (int64_t head = 0; head < heads; ++head)
      add(Opcode::attention_reduction, head, head + 1, 0, {{partial[head], made_.kv_shares}},
          {{reduced, 1}});
    return add_rows(Opcode::o_residual, model_.hidden, 0, {{reduced, heads}}, residual);
  }

  // The counter that all of mlp.residual raises.
  Instruction::CounterUse mlp(const Instruction::CounterUse& attention) {
    const int act = counters("act", 1).front(), down = counters("down", 1).front();
    const Instruction::CounterUse all_act =
        add_rows(Opcode::norm_gate_up_silu, model_.intermediate, 0, {attention}, act);
    Instruction::CounterUse all = {down, 0};
    for (int64_t share = 0; share < made_.down_shares; ++share)
      all.value += add_rows(Opcode::down_residual, model_.hidden, share, {all_act}, down).value;
    return all;
  }

  // The same of a layer of experts, which all wait for the choice among them.
  Instruction::CounterUse experts(const Instruction::CounterUse& attention) {
    const int routed = counters("route", 1).front(), act = counters("expert act", 1).front();
    const int down = counters("expert down", 1).front(), all = counters("combine", 1).front();
    add(Opcode::norm_route, 0, model_.experts, 0, {attention}, {{routed, 1}});
    const Instruction::CounterUse all_act =
        add_rows(Opcode::expert_gate_up_silu, model_.chosen * model_.expert_intermediate, 0,
                 {{routed, 1}}, act);
    const Instruction::CounterUse all_down =
        add_rows(Opcode::expert_down, model_.chosen * model_.hidden, 0, {all_act}, down);
    return add_rows(Opcode::combine_residual, model_.hidden, 0, {all_down}, all);
  }

  // An op's rows in blocks, each of which raises a counter; returns how high.
  Instruction::CounterUse add_rows(Opcode opcode, int64_t rows, int64_t share,
                                   const std::vector<Instruction::CounterUse>& waits, int counter) {
    const int64_t block = block_for(rows, queues_, kRows);
    for (int64_t row = 0; row < rows; row += block)
      add(opcode, row, std::min(row + block, rows), share, waits, {{counter, 1}});
    return {counter, blocks_of(rows, block)};
  }

  std::vector<int> counters(const char* name, int64_t count) {
    std::vector<int> places;
    for (int64_t i = 0; i < count; ++i) {
      places.push_back(static_cast<int>(made_.counters.size()));
      made_.counters.push_back(count == 1 ? fmt::format("layer {} {}", layer_, name)
                                          : fmt::format("layer {} {} {}", layer_, name, i));
    }
    return places;
  }

  void add(Opcode opcode, int64_t begin, int64_t end, int64_t share,
           std::vector<Instruction::CounterUse> waits,
           std::vector<Instruction::CounterUse> raises) {
    Instruction in;
    in.id = static_cast<int>(made_.instructions.size());
    in.queue = in.id % queues_;
    in.opcode = opcode;
    in.name = name_of(opcode);
    in.layer = layer_;
    in.begin = begin;
    in.end = end;
    in.share = share;
    // The first layer reads the embedding, which is there before the step.
    std::erase_if(waits, [](const Instruction::CounterUse& use) { return use.counter < 0; });
    in.waits = std::move(waits);
    in.raises = std::move(raises);
    Effects effects = effects_of(made_, in);
    in.reads = std::move(effects.reads);
    in.writes = std::move(effects.writes);
    made_.instructions.push_back(std::move(in));
  }

  int queues_;
  ScheduledModel model_;
  int layer_ = -1;
  Schedule made_;
};

}  // namespace

ScheduledModel scheduled_model(const ModelConfig& config) {
  return {.layers = config.layers,
          .hidden = config.hidden,
          .heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .intermediate = config.intermediate,
          .vocab = config.vocab,
          .qk_norm = config.qk_norm,
          .experts = config.experts.count,
          .chosen = config.experts.chosen,
          .expert_intermediate = config.experts.intermediate,
          .expert_layers = config.experts.layers};
}

Schedule make_schedule(const ScheduledModel& model, const ScheduleOptions& options) {
  check(options.queues > 0 && options.kv_shares > 0 && options.down_shares > 0,
        "a schedule has at least one queue and one share, found {} queues, {} shares of the pages "
        "and {} of mlp.down",
        options.queues, options.kv_shares, options.down_shares);
  check(
      options.queues <= kMostQueues &&
          std::max(options.kv_shares, options.down_shares) <= kMostShares,
      "a schedule has at most {} queues and {} shares, found {} queues, {} shares of the pages and "
      "{} of mlp.down: ask for fewer",
      kMostQueues, kMostShares, options.queues, options.kv_shares, options.down_shares);
  check(options.down_shares <= model.intermediate,
        "{} shares of mlp.down, which has {} numbers to share", options.down_shares,
        model.intermediate);
  return Maker(model, options).made();
}

}  // namespace lockstep
