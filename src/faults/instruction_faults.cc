// Bugs of steps that are lists of instructions: in the list, where the interpreter computes what it
// says, and in what an opcode does.
//
// Those of the list are what the checker of schedules finds without a run; where an order is all
// that is wrong, the fault runs an order that the counters allow and that shows it. Those of an
// opcode no checker can see. Names of instructions and of what they hold are those of
// src/schedule/schedule.h.
#include <algorithm>
#include <cmath>
#include <limits>
#include <ranges>

#include "kernels/base/check.h"
#include "src/faults/seeds.h"
#include "src/instructions/interpreter.h"
#include "src/schedule/checker.h"

namespace lockstep {
namespace {

// Traits of models: attention faults take a second KV head, and all keys that a query could see.
bool is_dense(const ModelConfig& c) { return c.experts.count == 0; }
bool has_every_key(const ModelConfig& c) {
  return is_dense(c) && std::ranges::all_of(c.window, [](int64_t window) { return window == 0; });
}
bool has_two_kv_heads(const ModelConfig& c) { return c.kv_heads > 1 && has_every_key(c); }
bool has_wide_head_norms(const ModelConfig& c) { return is_dense(c) && c.qk_norm; }

// Instruction number `number` of an opcode in a layer. Schedules that are made have at least two of
// each where there are two queues; one of a user's may have fewer.
int place_of(const Schedule& schedule, Opcode opcode, int layer, int number) {
  for (size_t place = 0; place < schedule.instructions.size(); ++place) {
    const Instruction& in = schedule.instructions[place];
    if (in.opcode == opcode && in.layer == layer && number-- == 0) return static_cast<int>(place);
  }
  fail("the schedule has too few instructions {} in layer {}: make it for more queues",
       name_of(opcode), layer);
}

// The spans of an instruction anew, after its rows or its layer have changed.
void follow_rows(const Schedule& schedule, Instruction& in) {
  Effects effects = effects_of(schedule, in);
  in.reads = std::move(effects.reads);
  in.writes = std::move(effects.writes);
}

// Edits the schedule in each layer of the request.
template <typename Edit>
void edit_layers(const Seams& seams, const FaultRequest& request, Edit edit) {
  Schedule& schedule = seams.step->schedule;
  for (int layer = 0; layer < schedule.model.layers; ++layer)
    if (request.layer < 0 || request.layer == layer) edit(schedule, layer);
}

// Has the step run in an order that shows the first pair that is now unordered.
void run_early(InterpreterOptions& step) {
  for (const ScheduleCheck::Finding& finding : check_schedule(step.schedule).findings)
    if (finding.first >= 0 && !finding.order.empty()) {
      step.interleaving = {.begin = finding.order};
      return;
    }
}

// The counter of all reductions is raised by each KV head's; the last one may come after the read.
void seed_step_target_less(const Seams& seams, const FaultRequest& request) {
  edit_layers(seams, request, [](Schedule& schedule, int layer) {
    --schedule.instructions[place_of(schedule, Opcode::o_residual, layer, 0)].waits[0].value;
  });
  run_early(*seams.step);
}

// The second block, since the first one also stores the norm that all compute.
void seed_step_wait_left_out(const Seams& seams, const FaultRequest& request) {
  edit_layers(seams, request, [](Schedule& schedule, int layer) {
    schedule.instructions[place_of(schedule, Opcode::norm_gate_up_silu, layer, 1)].waits.clear();
  });
  run_early(*seams.step);
}

// Its counters are raised all the same, by the block before it.
void seed_step_block_missing(const Seams& seams, const FaultRequest& request) {
  edit_layers(seams, request, [](Schedule& schedule, int layer) {
    const int place = place_of(schedule, Opcode::norm_gate_up_silu, layer, 1);
    const int before = place_of(schedule, Opcode::norm_gate_up_silu, layer, 0);
    for (const Instruction::CounterUse& raise : schedule.instructions[place].raises)
      schedule.instructions[before].raises.push_back(raise);
    schedule.instructions.erase(schedule.instructions.begin() + place);
  });
}

// The rows of the second block are left as they were, and the first one's computed twice alike.
void seed_step_neighbours_rows(const Seams& seams, const FaultRequest& request) {
  edit_layers(seams, request, [](Schedule& schedule, int layer) {
    const Instruction& first =
        schedule.instructions[place_of(schedule, Opcode::down_residual, layer, 0)];
    Instruction& second =
        schedule.instructions[place_of(schedule, Opcode::down_residual, layer, 1)];
    second.begin = first.begin, second.end = first.end;
    follow_rows(schedule, second);
  });
}

// The output of its own layer is never written. That of the layer after it is, before its time: the
// right reduction comes later and writes over it.
void seed_step_wrong_layer(const Seams& seams, const FaultRequest& request) {
  Schedule& schedule = seams.step->schedule;
  const int layer = std::max(request.layer, 0);
  check(layer + 1 < schedule.model.layers, "fault {} wants a layer after its own, found layer {}",
        request.name, layer);
  Instruction& in =
      schedule.instructions[place_of(schedule, Opcode::attention_reduction, layer, 0)];
  in.layer = layer + 1;
  follow_rows(schedule, in);
}

// Has every instruction of an opcode, in the layers of the request, computed by `wrong` after it
// was computed right.
// Several threads may be in it at once, each with an instruction of its own.
void compute_wrong(const Seams& seams, const FaultRequest& request, Opcode opcode,
                   std::function<void(const StepCall&)> wrong) {
  seams.step->around = [inner = seams.step->around, layer = request.layer, opcode,
                        wrong = std::move(wrong)](const StepCall& call) {
    if (inner)
      inner(call);
    else
      call.compute();
    if (call.in.opcode == opcode && (layer < 0 || layer == call.in.layer)) wrong(call);
  };
}

// Heads of q and of a group, and the shares of the pages.
struct Heads {
  int64_t shares, heads, group, dim;
  Heads(const StepCall& call, int64_t kv_shares)
      : shares(kv_shares),
        heads(call.pass.model.config().heads),
        group(heads / call.pass.model.config().kv_heads),
        dim(call.pass.model.config().head_dim) {}
  // The place of a head of q in attn.lse.
  int64_t at(int64_t share, int64_t token, int64_t head) const {
    return (token * shares + share) * heads + head;
  }
};

// Calls body(token, head) for each query head of the instruction's KV heads.
void for_heads(const StepCall& call, int64_t group, const auto& body) {
  for (int64_t token = 0; token < call.pass.batch.size(); ++token)
    for (int64_t head = call.in.begin * group; head < call.in.end * group; ++head)
      body(token, head);
}

void check_shares(const FaultRequest& request, int64_t shares, int64_t least) {
  check(shares >= least,
        "the schedule has {} share{} of the pages, fault {} wants {} or more: make one with "
        "lockstep schedule --kv-shares {} --json FILE, and add --step FILE",
        shares, shares == 1 ? "" : "s", request.name, least, std::max<int64_t>(2, least));
}

// Every reduction of the request's layers merges by that weight of a share, of the amount by which
// its attn.lse is below the largest one, with the last shares left out.
void seed_step_merge(const Seams& seams, const FaultRequest& request, int64_t left_out,
                     double (*weight_of)(double below)) {
  const int64_t shares = seams.step->schedule.kv_shares;
  check_shares(request, shares, left_out + 1);
  compute_wrong(seams, request, Opcode::attention_reduction, [=](const StepCall& call) {
    const Heads heads(call, shares);
    const PassTensors::Layer& layer = call.tensors.layers[call.in.layer];
    for_heads(call, heads.group, [&](int64_t token, int64_t head) {
      double most = -std::numeric_limits<double>::infinity(), all = 0;
      for (int64_t share = 0; share < shares - left_out; ++share)
        most = std::max(most, value_at(layer.lse, heads.at(share, token, head)));
      std::vector<double> mean(static_cast<size_t>(heads.dim));
      for (int64_t share = 0; share < shares - left_out; ++share) {
        const int64_t place = heads.at(share, token, head);
        const double lse = value_at(layer.lse, place);
        if (std::isinf(lse)) continue;  // no key of that share is seen
        const double weight = weight_of(lse - most);
        all += weight;
        for (int64_t d = 0; d < heads.dim; ++d)
          mean[static_cast<size_t>(d)] += weight * value_at(layer.partial, place * heads.dim + d);
      }
      const int64_t at = (token * heads.heads + head) * heads.dim;
      for (int64_t d = 0; d < heads.dim; ++d)
        put(layer.out, at + d,
            all == 0 ? 0 : static_cast<float>(mean[static_cast<size_t>(d)] / all));
    });
  });
}

// A log-sum to the base 2 is that to the base e over log 2.
void seed_step_merge_base_e(const Seams& seams, const FaultRequest& request) {
  seed_step_merge(seams, request, 0, [](double below) { return std::exp(below / std::log(2.0)); });
}
// The list agrees: the reduction reads and waits for a share less.
void seed_step_last_share_left_out(const Seams& seams, const FaultRequest& request) {
  edit_layers(seams, request, [](Schedule& schedule, int layer) {
    Instruction& in =
        schedule.instructions[place_of(schedule, Opcode::attention_reduction, layer, 0)];
    --in.waits[0].value;
  });
  seed_step_merge(seams, request, 1, [](double below) { return std::exp(below); });
  run_early(*seams.step);
}

// A share of the softmax of one query of a head over the keys of a KV head.
struct Attended {
  std::vector<double> scores, mean;
  double most = -std::numeric_limits<double>::infinity(), weight = 0;
};
Attended attend_over(const StepCall& call, int64_t token, int64_t request, int64_t head,
                     int64_t kv_head, int64_t shares) {
  const PassTensors::Layer& layer = call.tensors.layers[call.in.layer];
  const AttentionBatch batch = call.pass.batch.attention();
  const Heads heads(call, shares);
  const int64_t dim = heads.dim, page = layer.cache.page_size();
  const int64_t length = batch.context_length.as<int32_t>()[request];
  const int64_t position = length - (batch.query_start.as<int32_t>()[request + 1] - token);
  const int64_t pages = (length + page - 1) / page;
  const int64_t end = std::min(pages * (call.in.share + 1) / shares * page, position + 1);
  const auto* table = batch.page_table.as<int32_t>() + request * batch.page_table.shape[1];
  Attended made{.mean = std::vector<double>(static_cast<size_t>(dim))};
  std::vector<int64_t> rows;
  for (int64_t key = pages * call.in.share / shares * page; key < end; ++key) {
    rows.push_back(
        ((table[key / page] * page + key % page) * (heads.heads / heads.group) + kv_head) * dim);
    double score = 0;
    for (int64_t d = 0; d < dim; ++d)
      score += value_at(layer.q_rope, (token * heads.heads + head) * dim + d) *
               value_at(layer.cache.k, rows.back() + d);
    made.scores.push_back(score / std::sqrt(static_cast<double>(dim)));
    made.most = std::max(made.most, made.scores.back());
  }
  for (const double score : made.scores) made.weight += std::exp(score - made.most);
  for (size_t i = 0; i < rows.size(); ++i)
    for (int64_t d = 0; d < dim; ++d)
      made.mean[static_cast<size_t>(d)] +=
          std::exp(made.scores[i] - made.most) / made.weight * value_at(layer.cache.v, rows[i] + d);
  return made;
}

// Calls body(place in attn.lse, share of the softmax) for each query of the instruction's heads,
// over the keys of the KV head that is `past` its own.
void for_attended(const StepCall& call, int64_t shares, int64_t past, const auto& body) {
  const auto* start = call.pass.batch.attention().query_start.as<int32_t>();
  const Heads heads(call, shares);
  const int64_t requests = call.pass.batch.attention().context_length.rows();
  for_heads(call, heads.group, [&](int64_t token, int64_t head) {
    const int64_t request = std::upper_bound(start, start + requests, token) - start - 1;
    body(heads.at(call.in.share, token, head),
         attend_over(call, token, request, head, head / heads.group + past, shares));
  });
}

// A log-sum-exp of a share to which its largest score was not added back.
void seed_step_lse_without_most(const Seams& seams, const FaultRequest& request) {
  const int64_t shares = seams.step->schedule.kv_shares;
  check_shares(request, shares, 2);
  compute_wrong(seams, request, Opcode::partial_attention, [shares](const StepCall& call) {
    for_attended(call, shares, 0, [&](int64_t place, const Attended& made) {
      put(call.tensors.layers[call.in.layer].lse, place, static_cast<float>(std::log(made.weight)));
    });
  });
}

// Queries of the first KV head over the keys and values of the next one. The list says so too, and
// waits for them.
void seed_step_other_kv_head(const Seams& seams, const FaultRequest& request) {
  const int64_t shares = seams.step->schedule.kv_shares;
  edit_layers(seams, request, [shares](Schedule& schedule, int layer) {
    for (int share = 0; share < shares; ++share) {
      const int place = place_of(schedule, Opcode::partial_attention, layer, share);
      Instruction& in = schedule.instructions[place];
      const Instruction& other = schedule.instructions[place_of(
          schedule, Opcode::partial_attention, layer, static_cast<int>(shares) + share)];
      in.reads.resize(1);  // of its own it keeps q
      in.reads.insert(in.reads.end(), other.reads.begin() + 1, other.reads.end());
      in.waits.insert(in.waits.end(), other.waits.begin(), other.waits.end());
    }
  });
  compute_wrong(seams, request, Opcode::partial_attention, [shares](const StepCall& call) {
    if (call.in.begin > 0) return;
    const PassTensors::Layer& layer = call.tensors.layers[call.in.layer];
    for_attended(call, shares, 1, [&](int64_t place, const Attended& made) {
      put(layer.lse, place, static_cast<float>(made.most + std::log(made.weight)));
      const auto dim = std::ssize(made.mean);
      for (int64_t d = 0; d < dim; ++d)
        put(layer.partial, place * dim + d, static_cast<float>(made.mean[static_cast<size_t>(d)]));
    });
  });
}

// The row of a token goes to the slot of the one before it.
void seed_step_append_behind(const Seams& seams, const FaultRequest& request) {
  compute_wrong(seams, request, Opcode::norm_qkv_rope_append, [](const StepCall& call) {
    const PassTensors::Layer& layer = call.tensors.layers[call.in.layer];
    const ModelConfig& c = call.pass.model.config();
    const auto* slots = call.pass.batch.slots.as<int64_t>();
    const int64_t bytes = c.head_dim * size_of(layer.k.dtype), page = layer.cache.page_size();
    for (int64_t row = call.in.begin / c.head_dim - c.heads;
         row < call.in.end / c.head_dim - c.heads; ++row) {
      if (row < 0) continue;
      const bool is_k = row < c.kv_heads;
      const int64_t head = is_k ? row : row - c.kv_heads;
      const TensorView &from = is_k ? layer.k_rope : layer.v,
                       &to = is_k ? layer.cache.k : layer.cache.v;
      for (int64_t token = 0; token < call.pass.batch.size(); ++token)
        if (slots[token] > 0 && slots[token] % page > 0)
          std::memcpy(to.as<char>() + ((slots[token] - 1) * c.kv_heads + head) * bytes,
                      from.as<char>() + (token * c.kv_heads + head) * bytes,
                      static_cast<size_t>(bytes));
    }
  });
}

// The norm of the 8 rows that a block of a product holds, in the place of the head's.
void seed_step_norm_over_block(const Seams& seams, const FaultRequest& request) {
  compute_wrong(seams, request, Opcode::norm_qkv_rope_append, [](const StepCall& call) {
    constexpr int64_t kBlockRows = 8;
    const PassTensors::Layer& layer = call.tensors.layers[call.in.layer];
    const ModelConfig& c = call.pass.model.config();
    const Batch& batch = call.pass.batch;
    const Shape shape = {batch.size(), 1, c.head_dim};
    for (int64_t head = call.in.begin / c.head_dim; head < call.in.end / c.head_dim; ++head) {
      if (head >= c.heads) return;
      const Tensor normed(shape, layer.q.dtype), turned(shape, layer.q.dtype);
      const auto at = [&](int64_t token) { return (token * c.heads + head) * c.head_dim; };
      for (int64_t i = 0; i < shape.count(); i += kBlockRows) {
        const int64_t from = at(i / c.head_dim) + i % c.head_dim;
        double squares = 0;
        for (int64_t d = 0; d < kBlockRows; ++d)
          squares += std::pow(value_at(layer.q, from + d), 2) / kBlockRows;
        for (int64_t d = 0; d < kBlockRows; ++d)
          put(normed, i + d,
              static_cast<float>(value_at(layer.q, from + d) / std::sqrt(squares + c.norm_eps) *
                                 value_at(layer.weights->q_norm, i % c.head_dim + d)));
      }
      call.pass.model.ops().rope({.layer = call.in.layer, .point = "attn.q_rope"}, turned, normed,
                                 batch.cos, batch.sin, batch.positions);
      for (int64_t i = 0; i < shape.count(); ++i) {
        put(layer.q_norm, at(i / c.head_dim) + i % c.head_dim, get(normed, i));
        put(layer.q_rope, at(i / c.head_dim) + i % c.head_dim, get(turned, i));
      }
    }
  });
}

// The table of this file. A name says which part of a step is wrong; the point is the first that
// shows it in the order of execution that the fault has the step run in. Faults that no number
// shows, such as a block that is computed twice alike, are not among them: tests/faults and
// tests/schedule have those, as they have what the interpreter refuses to run.
constexpr Fault kInstructionRows[] = {
    {"step-target-less",
     "attn.o",
     "an instruction of o waits for one reduction of attention less than it reads",
     "a model without experts, --executor instructions",
     {},
     has_two_kv_heads,
     seed_step_target_less,
     true,
     Fault::Seat::instructions},
    {"step-wait-left-out",
     "mlp.gate",
     "an instruction of gate and up waits for nothing",
     "a model without experts, --executor instructions",
     {},
     is_dense,
     seed_step_wait_left_out,
     true,
     Fault::Seat::instructions},
    {"step-block-missing",
     "mlp.gate",
     "a block of gate and up is computed by nobody, and its counter raised",
     "a model without experts, --executor instructions",
     {},
     is_dense,
     seed_step_block_missing,
     true,
     Fault::Seat::instructions},
    {"step-neighbours-rows",
     "mlp.down",
     "an instruction of down has the rows of its neighbour",
     "a model without experts, --executor instructions",
     {},
     is_dense,
     seed_step_neighbours_rows,
     true,
     Fault::Seat::instructions},
    {"step-wrong-layer",
     "attn.out",
     "a reduction of attention is done for the next layer",
     "a model without experts, --executor instructions",
     {},
     has_two_kv_heads,
     seed_step_wrong_layer,
     true,
     Fault::Seat::instructions},
    {"step-other-kv-head",
     "attn.partial",
     "the partial attention of a KV head is that of the next one",
     "a model without experts, --executor instructions",
     {},
     has_two_kv_heads,
     seed_step_other_kv_head,
     true,
     Fault::Seat::instructions},
    {"step-merge-base-e",
     "attn.out",
     "shares of the pages are merged by e^x of log-sums to the base 2",
     "a model without experts, --executor instructions with shares of the pages",
     {},
     is_dense,
     seed_step_merge_base_e,
     true,
     Fault::Seat::instructions},
    {"step-lse-without-most",
     "attn.lse",
     "the logarithm of a share's sum lacks the largest score that its terms are beside",
     "a model without experts, --executor instructions with shares of the pages",
     {},
     has_every_key,
     seed_step_lse_without_most,
     true,
     Fault::Seat::instructions},
    {"step-last-share-left-out",
     "attn.out",
     "the reduction leaves out the last share of the pages",
     "a model without experts, --executor instructions with shares of the pages",
     {},
     is_dense,
     seed_step_last_share_left_out,
     true,
     Fault::Seat::instructions},
    {"step-append-behind",
     "attn.kv",
     "K and V are appended one position behind",
     "a model without experts, --executor instructions",
     {},
     is_dense,
     seed_step_append_behind,
     true,
     Fault::Seat::instructions},
    {"step-norm-over-block",
     "attn.q_norm",
     "the norm of a head of q is taken over the 8 rows of a block",
     "a model without experts, --executor instructions",
     {},
     has_wide_head_norms,
     seed_step_norm_over_block,
     true,
     Fault::Seat::instructions},
};

}  // namespace

constinit const std::span<const Fault> kInstructionFaults = kInstructionRows;

}  // namespace lockstep
