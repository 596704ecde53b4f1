// The verbs of a model's forward pass come layer by layer, while a schedule may run instructions of
// several layers at once. So the verbs only take down where each layer's tensors lie, each in
// memory of its own for the whole pass; the head, which comes last, runs all instructions and then
// shows all points in the order of the model. Memory that no instruction has written is NaN, and a
// schedule that reads too early shows it.
#include "src/instructions/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "kernels/base/check.h"
#include "src/instructions/step_ops.h"
#include "src/model/piece_executor.h"
#include "src/schedule/execution.h"

namespace lockstep {
namespace {

// The buffers of passes, which keep every tensor until the next pass: an executor lives for one.
class Interpreter {
 public:
  Interpreter(const ModelConfig& config, InterpreterOptions options)
      : config_(config), options_(std::move(options)) {}

  const InterpreterOptions& options() const { return options_; }
  PassTensors& tensors() { return tensors_; }

  // Makes room for a pass, none of whose numbers is there before it is computed.
  Activations& begin(const PassParts& pass) {
    activations_.emplace(config_, pass.model.dtype(), Device::cpu, Activations::Lifetime::pass);
    activations_->resize(pass.batch.size(), pass.batch.logit_rows.view().count());
    tensors_ = {};
    tensors_.layers.reserve(config_.layers);
    of_shares_.clear();
    return *activations_;
  }

  // A tensor of one layer's shares for the pass: no model has a buffer for it.
  TensorView make_of_shares(const Shape& shape) {
    return of_shares_.emplace_back(shape, DType::f32, Device::cpu).view();
  }

 private:
  ModelConfig config_;
  InterpreterOptions options_;
  std::optional<Activations> activations_;
  std::deque<Tensor> of_shares_;
  PassTensors tensors_;
};

// All bits set: a NaN of every dtype, for what no instruction has written yet.
void poison(const TensorView& tensor) {
  if (!tensor.empty()) std::memset(tensor.data, 0xff, static_cast<size_t>(tensor.bytes()));
}

// Verbs say what belongs to which layer and compute nothing but the embedding; all instructions run
// when the head is asked for.
class InstructionExecutor : public PieceExecutor {
 public:
  InstructionExecutor(const PassParts& pass, std::shared_ptr<Interpreter> interpreter)
      : InstructionExecutor({pass.model, pass.batch, interpreter->begin(pass), pass.probe},
                            interpreter, 0) {}

  void norm(int layer, const TensorView& weight) override {
    layer_ = layer;
    stream_ = a_.next_half();
    begin_layer(weight);
  }

  void qkv(const LayerWeights& w) override { now().weights = &w; }

  void qk_norm_rope_kv_write(const LayerWeights& /*w*/, const KvCache& cache) override {
    PassTensors::Layer& l = now();
    l.cache = cache;
    for (const auto& [to, from] : {std::pair(&l.q, &a_.q),
                                   {&l.q_norm, &a_.q_norm},
                                   {&l.q_rope, &a_.q_rope},
                                   {&l.k, &a_.k},
                                   {&l.k_norm, &a_.k_norm},
                                   {&l.k_rope, &a_.k_rope},
                                   {&l.v, &a_.v}})
      take(*to, *from);
  }

  void attend(const KvCache& /*cache*/) override {
    PassTensors::Layer& l = now();
    const int64_t tokens = pass_.batch.size(), shares = interpreter_->options().schedule.kv_shares;
    const Shape of_head = {tokens, shares, config_.heads};
    take(l.lse, interpreter_->make_of_shares(of_head));
    take(l.partial,
         interpreter_->make_of_shares({tokens, shares, config_.heads, config_.head_dim}));
    take(l.out, a_.attention);
  }
  void project(const LayerWeights& /*w*/) override { take(now().o, a_.branch); }

  void gate_up_silu(const LayerWeights& /*w*/) override {
    PassTensors::Layer& l = now();
    take(l.gate, a_.gate);
    take(l.up, a_.up);
    take(l.act, a_.act);
  }

  void down(const LayerWeights& /*w*/) override { take(now().down, a_.branch); }

  void experts(const LayerWeights& /*w*/) override {
    PassTensors::Layer& l = now();
    for (const auto& [to, from] : {std::pair(&l.router, &a_.router),
                                   {&l.experts, &a_.experts},
                                   {&l.expert_weights, &a_.weights},
                                   {&l.expert_gate, &a_.expert_gate},
                                   {&l.expert_up, &a_.expert_up},
                                   {&l.expert_act, &a_.expert_act},
                                   {&l.expert_down, &a_.expert_down},
                                   {&l.combined, &a_.branch}})
      take(*to, *from);
  }

  void add_norm(PointName residual, PointName norm, int norm_layer,
                const TensorView& weight) override {
    const bool of_attention = residual.point == point("attn.residual");
    take(of_attention ? now().attn_residual : now().mlp_residual, a_.stream);
    const std::string_view due = of_attention      ? "mlp.norm"
                                 : norm_layer >= 0 ? "attn.norm"
                                                   : "final.norm";
    check(norm.point.name == due, "{} is followed by {}, which no schedule has",
          residual.point.name, norm.point.name);
    layer_ = norm_layer;
    stream_ = a_.next_half();
    if (of_attention) {
      now().mlp_norm_weight = weight;
      take(now().mlp_norm, a_.norm);
    } else if (norm_layer >= 0) {
      begin_layer(weight);
    } else {
      tensors_.final_norm_weight = weight;
      take(tensors_.final_norm, a_.norm);
    }
  }

  Forward head(const WeightView& lm_head) override {
    tensors_.lm_head = lm_head;
    take(tensors_.logits, a_.logits);
    const InterpreterOptions& options = interpreter_->options();
    const StepOps step(pass_, options.schedule, tensors_);
    const std::vector<TimedWork> times =
        run_step(options.schedule, options.interleaving, [&](const Instruction& in) {
          const auto compute = [&] { step.compute(in); };
          if (options.around) return options.around({in, pass_, tensors_, compute});
          compute();
        });
    if (options.timeline) options.timeline->last = [times] { return times; };
    for (size_t layer = 0; layer < tensors_.layers.size(); ++layer) show_layer(layer);
    layer_ = -1;
    show("final.norm", tensors_.final_norm);
    if (a_.logits.rows() == 0) return {a_.logits, a_.token};
    probe_.logits(point("logits"), a_.logits);
    ops_.argmax(at("token"), a_.token, a_.logits);
    probe_.logits(point("token"), a_.token);
    return {a_.logits, a_.token};
  }

 private:
  InstructionExecutor(const PassParts& pass, std::shared_ptr<Interpreter> interpreter, int /*own*/)
      : PieceExecutor(pass),
        pass_(pass),
        interpreter_(std::move(interpreter)),
        tensors_(interpreter_->tensors()) {}

  PassTensors::Layer& now() { return tensors_.layers.back(); }

  void begin_layer(const TensorView& weight) {
    PassTensors::Layer& layer = tensors_.layers.emplace_back();
    layer.attn_norm_weight = weight;
    layer.in = stream_;
    take(layer.attn_norm, a_.norm);
  }

  static void take(TensorView& to, const TensorView& from) {
    to = from;
    poison(to);
  }

  void show_layer(size_t place) {
    const PassTensors::Layer& l = tensors_.layers[place];
    layer_ = static_cast<int>(place);
    show("attn.norm", l.attn_norm);
    show("attn.q", l.q);
    show("attn.k", l.k);
    show("attn.v", l.v);
    if (config_.qk_norm) {
      show("attn.q_norm", l.q_norm);
      show("attn.k_norm", l.k_norm);
    }
    show("attn.q_rope", l.q_rope);
    show("attn.k_rope", l.k_rope);
    show_kv(l.cache);
    if (shows_shares(interpreter_->options().schedule)) {
      show("attn.partial", l.partial);
      show("attn.lse", l.lse);
    }
    show("attn.out", l.out);
    show("attn.o", l.o);
    show("attn.residual", l.attn_residual);
    show("mlp.norm", l.mlp_norm);
    if (config_.experts.in(layer_))
      show_experts(l);
    else
      show_mlp(l);
    show("mlp.residual", l.mlp_residual);
  }

  void show_mlp(const PassTensors::Layer& l) {
    show("mlp.gate", l.gate);
    show("mlp.up", l.up);
    show("mlp.act", l.act);
    show("mlp.down", l.down);
  }

  void show_experts(const PassTensors::Layer& l) {
    show("mlp.router", l.router);
    show("mlp.experts", l.experts);
    show("mlp.weights", l.expert_weights);
    show("mlp.expert_gate", l.expert_gate);
    show("mlp.expert_up", l.expert_up);
    show("mlp.expert_act", l.expert_act);
    show("mlp.expert_down", l.expert_down);
    show("mlp.combine", l.combined);
  }

  PassParts pass_;
  std::shared_ptr<Interpreter> interpreter_;
  PassTensors& tensors_;  // the interpreter's
};

void check_sizes(const ModelConfig& config, const ScheduledModel& m) {
  const struct {
    const char* name;
    int64_t of_schedule, of_model;
  } sizes[] = {{"layers", m.layers, config.layers},
               {"hidden", m.hidden, config.hidden},
               {"heads", m.heads, config.heads},
               {"kv_heads", m.kv_heads, config.kv_heads},
               {"head_dim", m.head_dim, config.head_dim},
               {"intermediate", m.intermediate, config.intermediate},
               {"experts", m.experts, config.experts.count},
               {"chosen", m.chosen, config.experts.chosen},
               {"expert_intermediate", m.expert_intermediate, config.experts.intermediate},
               {"vocab", m.vocab, config.vocab}};
  for (const auto& size : sizes)
    check(
        size.of_schedule == size.of_model,
        "the schedule is of a model whose {} is {}, the checkpoint's is {}: make it of this model",
        size.name, size.of_schedule, size.of_model);
  for (int layer = 0; layer < config.layers; ++layer)
    check(m.has_experts(layer) == config.experts.in(layer),
          "the schedule has {} in layer {}, the checkpoint has {}: make it of this model",
          m.has_experts(layer) ? "experts" : "an MLP", layer,
          m.has_experts(layer) ? "an MLP" : "experts");
}

void check_computable(const Schedule& schedule) {
  check(schedule.down_shares == 1,
        "the schedule cuts mlp.down into {} shares, one sum was wanted: the interpreter rounds "
        "once, as Lockstep's contract has it",
        schedule.down_shares);
  for (const Instruction& in : schedule.instructions) {
    check(in.opcode != Opcode::other, "{}: the interpreter computes Lockstep's opcodes alone",
          said(in));
    const int64_t dim = schedule.model.head_dim;
    check(in.opcode != Opcode::norm_qkv_rope_append || (in.begin % dim == 0 && in.end % dim == 0),
          "{} splits a head of {}: whole heads were wanted, for RoPE turns both halves of one",
          said(in), dim);
  }
  std::vector<int> order;
  const std::vector<std::vector<int>> lists = lists_of(schedule);
  // Counters never fall, so that what one order of execution runs to its end, every order does.
  Execution(schedule, lists).run(-1, order);
  check(
      order.size() == schedule.instructions.size(),
      "{} of {} instructions of the schedule never run: `lockstep schedule FILE --check` says what "
      "they wait for",
      schedule.instructions.size() - order.size(), schedule.instructions.size());
}

// Where the rows of a point stand among those of the opcode that makes it.
struct Made {
  std::string_view point;
  Opcode opcode;
};
constexpr Made kMade[] = {{"attn.norm", Opcode::norm_qkv_rope_append},
                          {"attn.q", Opcode::norm_qkv_rope_append},
                          {"attn.k", Opcode::norm_qkv_rope_append},
                          {"attn.v", Opcode::norm_qkv_rope_append},
                          {"attn.q_norm", Opcode::norm_qkv_rope_append},
                          {"attn.k_norm", Opcode::norm_qkv_rope_append},
                          {"attn.q_rope", Opcode::norm_qkv_rope_append},
                          {"attn.k_rope", Opcode::norm_qkv_rope_append},
                          {"attn.partial", Opcode::partial_attention},
                          {"attn.lse", Opcode::partial_attention},
                          {"attn.out", Opcode::attention_reduction},
                          {"attn.o", Opcode::o_residual},
                          {"attn.residual", Opcode::o_residual},
                          {"mlp.norm", Opcode::norm_gate_up_silu},
                          {"mlp.gate", Opcode::norm_gate_up_silu},
                          {"mlp.up", Opcode::norm_gate_up_silu},
                          {"mlp.act", Opcode::norm_gate_up_silu},
                          {"mlp.down", Opcode::down_residual},
                          {"mlp.residual", Opcode::down_residual},
                          {"mlp.router", Opcode::norm_route},
                          {"mlp.experts", Opcode::norm_route},
                          {"mlp.weights", Opcode::norm_route},
                          {"mlp.expert_gate", Opcode::expert_gate_up_silu},
                          {"mlp.expert_up", Opcode::expert_gate_up_silu},
                          {"mlp.expert_act", Opcode::expert_gate_up_silu},
                          {"mlp.expert_down", Opcode::expert_down},
                          {"mlp.combine", Opcode::combine_residual}};

// The opcode that makes what another one makes in a layer without experts.
Opcode with_experts(Opcode opcode) {
  if (opcode == Opcode::norm_gate_up_silu) return Opcode::norm_route;
  return opcode == Opcode::down_residual ? Opcode::combine_residual : opcode;
}

// The query head and the share that a number of attn.partial or attn.lse is of.
struct OfShare {
  int64_t share, head;
};
OfShare share_of(const ScheduledModel& m, std::string_view point, int64_t number) {
  const int64_t head = point == "attn.partial" ? number / m.head_dim : number;
  return {head / m.heads, head % m.heads};
}

// The row of the opcode's weights, or the KV head, that a number of a point comes from. The rows of
// the first opcode are those of the stacked weights of q, k and v.
int64_t row_of(const ScheduledModel& m, std::string_view point, int64_t number) {
  if (point.ends_with("norm") && !point.ends_with("_norm")) return 0;  // whoever holds row 0
  if (point == "attn.out") return number / (m.head_dim * m.group());
  if (point == "attn.partial" || point == "attn.lse")
    return share_of(m, point, number).head / m.group();
  if (point.starts_with("attn.k")) return m.heads * m.head_dim + number;
  if (point == "mlp.router" || point == "mlp.experts" || point == "mlp.weights") return 0;
  if (point == "attn.v") return (m.heads + m.kv_heads) * m.head_dim + number;
  return number;
}

}  // namespace

bool shows_shares(const Schedule& schedule) { return schedule.kv_shares > 1; }

MakeExecutor interpreter_of(const ModelConfig& config, InterpreterOptions options) {
  check_sizes(config, options.schedule.model);
  check_computable(options.schedule);
  auto interpreter = std::make_shared<Interpreter>(config, std::move(options));
  return [interpreter](const PassParts& pass) -> std::unique_ptr<LayerExecutor> {
    return std::make_unique<InstructionExecutor>(pass, interpreter);
  };
}

const Instruction* writer_of(const Schedule& schedule, std::string_view point, int layer,
                             int64_t number) {
  Opcode opcode = Opcode::norm_head;
  if (point != "logits" && point != "final.norm") {
    const auto made = std::ranges::find(kMade, point, &Made::point);
    if (made == std::ranges::end(kMade)) return nullptr;
    opcode = schedule.model.has_experts(layer) ? with_experts(made->opcode) : made->opcode;
  }
  const int64_t row = row_of(schedule.model, point, number);
  const bool in_shares = opcode == Opcode::partial_attention;
  const int64_t share = in_shares ? share_of(schedule.model, point, number).share : 0;
  for (const Instruction& in : schedule.instructions)
    if (in.opcode == opcode && (in.layer == layer || opcode == Opcode::norm_head) &&
        in.begin <= row && row < in.end && (!in_shares || in.share == share))
      return &in;
  return nullptr;
}

}  // namespace lockstep
