// Verbs say what belongs to which layer; everything is launched when the head is asked for. Each
// number of rows has a workspace of its own, and buffers for who brings none that last as long as
// the pass, which stay where they are, so that graphs can be made of the launch.
#include "src/model/persistent_executor.h"

#include <algorithm>
#include <map>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/decode_step.h"
#include "src/model/piece_executor.h"

namespace lockstep {
namespace {

// The memory of steps of some number of rows.
struct StepMemory {
  StepMemory(const Model& model)
      : activations(model.config(), model.dtype(), model.device(), Activations::Lifetime::pass) {}
  Activations activations;
  Tensor workspace, timeline;
};
// By the number of rows.
struct StepMemories {
  std::map<int64_t, StepMemory> of;
  // The weights of a model, packed at the first step that can use them (decode_step_packed).
  Tensor packed;
  const Model* packed_of = nullptr;
  std::shared_ptr<Timeline> timeline;  // null: none was asked for
};

Tensor zeros(int64_t bytes, Device device) {
  const Tensor tensor({bytes}, DType::u8);
  std::fill_n(tensor.as<char>(), bytes, 0);
  return copy_on(device, tensor);
}

// The marks of one step, in the order of kDecodeMarks.
using Marks = std::array<int64_t, kDecodeMarks.size()>;

// The work of the multiprocessors, of marks as the launch leaves them. Marks of steps before, which
// had more to do, are told apart by being older than this step's first one.
std::vector<TimedWork> timed_work(const TensorView& home) {
  const int64_t blocks = home.shape[0], layers = home.shape[1], parts = home.shape[2];
  const auto* marks = home.as<Marks>();
  // A block that has nothing of the first part marks when it came to it, too.
  int64_t first = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = marks[block * layers * parts][0];
    if (begin > 0 && (first == 0 || begin < first)) first = begin;
  }
  std::vector<TimedWork> all;
  for (int64_t i = 0; i < blocks * layers * parts; ++i) {
    const auto [begin, waited, end] = marks[i];
    if (begin < first || begin == 0 || end <= begin) continue;
    all.push_back({.queue = static_cast<int>(i / (layers * parts)),
                   .name = std::string(kDecodeParts[i % parts]),
                   .layer = static_cast<int>(i / parts % layers),
                   .begin = begin,
                   .waited = std::clamp(waited, begin, end),
                   .end = end});
  }
  return all;
}

// When the tensors of a step by clusters are there.
ReadyOf ready_by(const DecodeProgress& progress, const uint32_t* words) {
  return [=](const Point& seen, int layer) -> Ready {
    if (seen == point("token")) return {words + progress.token_word(), 1};
    if (seen == point("logits") || seen == point("final.norm"))
      return {words + progress.layers, DecodeProgress::kOfColumns,
              seen == point("logits") ? DecodeProgress::kColumns : 0};
    return {words + std::max(layer, 0), DecodeProgress::kOfLayer};
  };
}

void leave_out_taps(DecodeLayer& l) {
  for (TensorView* tap :
       {&l.norm_out, &l.q_out, &l.k_out, &l.v_out, &l.q_norm_out, &l.k_norm_out, &l.q_rope_out,
        &l.k_rope_out, &l.attention_out, &l.o_out, &l.attn_residual_out, &l.mlp_norm_out,
        &l.gate_out, &l.up_out, &l.act_out, &l.down_out, &l.mlp_residual_out})
    *tap = {};
}

class PersistentExecutor : public PieceExecutor {
 public:
  PersistentExecutor(const PassParts& pass, StepMemory& memory, StepMemories& shared)
      : PieceExecutor(pass), memory_(memory), shared_(shared), timeline_(shared.timeline) {
    a_.resize(batch_.size(), batch_.size());
    check(!probe_.writes(),
          "--executor persistent shows what it computed when all of it is, and something wants to "
          "change it on the way: leave out --determinism, --modes and --confirm");
    layers_.reserve(config_.layers);
    taps_ = probe_.on();
  }

  void embed(const TensorView& table) override {
    step_.embed = table;
    step_.embed_out = a_.stream;
  }

  void norm(int layer, const TensorView& weight) override {
    layer_ = layer;
    a_.next_half();
    begin_layer(weight);
  }

  void qkv(const LayerWeights& w) override {
    DecodeLayer& l = layers_.back();
    l.q = plain_codes("decode_step", w.q), l.k = plain_codes("decode_step", w.k);
    l.v = plain_codes("decode_step", w.v), l.o = plain_codes("decode_step", w.o);
    l.q_bias = w.q_bias, l.k_bias = w.k_bias, l.v_bias = w.v_bias;
    l.q_norm = w.q_norm, l.k_norm = w.k_norm;
    l.q_out = a_.q, l.k_out = a_.k, l.v_out = a_.v;
  }

  void qk_norm_rope_kv_write(const LayerWeights& /*w*/, const KvCache& cache) override {
    DecodeLayer& l = layers_.back();
    l.cache = cache;
    if (config_.qk_norm) l.q_norm_out = a_.q_norm, l.k_norm_out = a_.k_norm;
    l.q_rope_out = a_.q_rope, l.k_rope_out = a_.k_rope;
  }

  void attend(const KvCache& /*cache*/) override { layers_.back().attention_out = a_.attention; }
  void project(const LayerWeights& /*w*/) override { layers_.back().o_out = a_.branch; }

  void gate_up_silu(const LayerWeights& w) override {
    DecodeLayer& l = layers_.back();
    l.gate = plain_codes("decode_step", w.gate), l.up = plain_codes("decode_step", w.up);
    l.gate_out = a_.gate, l.up_out = a_.up, l.act_out = a_.act;
  }

  void down(const LayerWeights& w) override {
    layers_.back().down = plain_codes("decode_step", w.down);
    layers_.back().down_out = a_.branch;
  }

  void experts(const LayerWeights& /*w*/) override { fail("decode_step has no experts"); }

  void add_norm(PointName residual, PointName /*norm*/, int norm_layer,
                const TensorView& weight) override {
    const bool of_attention = residual.point == point("attn.residual");
    DecodeLayer& l = layers_.back();
    (of_attention ? l.attn_residual_out : l.mlp_residual_out) = a_.stream;
    layer_ = norm_layer;
    a_.next_half();
    if (of_attention) {
      l.mlp_norm = weight;
      l.mlp_norm_out = a_.norm;
    } else if (norm_layer >= 0) {
      begin_layer(weight);
    } else {
      step_.final_norm = weight;
      step_.final_norm_out = a_.norm;
    }
  }

  Forward head(const WeightView& lm_head) override {
    step_.lm_head = plain_codes("decode_step", lm_head);
    step_.logits = a_.logits;
    step_.token = a_.token;
    launch();
    if (taps_) show_all();
    return {a_.logits, a_.token};
  }

 private:
  void begin_layer(const TensorView& weight) {
    DecodeLayer& layer = layers_.emplace_back();
    layer.attn_norm = weight;
    layer.norm_out = a_.norm;
  }

  void launch() {
    step_.heads = config_.heads, step_.kv_heads = config_.kv_heads;
    step_.head_dim = config_.head_dim, step_.intermediate = config_.intermediate;
    step_.eps = eps_;
    step_.tokens = batch_.tokens, step_.positions = batch_.positions, step_.slots = batch_.slots;
    step_.cos = batch_.cos, step_.sin = batch_.sin;
    step_.attention = batch_.attention();
    if (memory_.workspace.view().empty())
      memory_.workspace = zeros(decode_step_workspace(step_), model_.device());
    step_.workspace = memory_.workspace;
    if (timeline_) keep_times();
    std::vector<DecodeLayer> layers = layers_;
    if (!taps_) {
      step_.embed_out = step_.final_norm_out = {};
      for (DecodeLayer& l : layers) leave_out_taps(l);
    }
    step_.layers = layers;
    use_packed();
    if (taps_ && !step_.packed.empty()) show_progress();
    model_.fused().decode_step(model_.context(point("token")), step_);
  }

  void use_packed() {
    const int64_t bytes = model_.fused().decode_step_packed(step_);
    if (bytes == 0) return;
    step_.pack = shared_.packed_of != &model_;
    if (step_.pack) {
      shared_.packed = Tensor({bytes}, DType::u8, model_.device());
      shared_.packed_of = &model_;
    }
    step_.packed = shared_.packed;
  }

  // To who digests the pass while the launch makes it.
  void show_progress() {
    step_.rope_cos_out = a_.rope_cos, step_.rope_sin_out = a_.rope_sin;
    const DecodeProgress progress{std::ssize(layers_), step_.lm_head.shape[0]};
    if (progress.bytes() > batch_.counters.view().bytes()) return;
    if (probe_.waits(ready_by(progress, batch_.counters.as<const uint32_t>())))
      step_.progress = batch_.counters.part(0, {progress.bytes()}, DType::u8);
  }

  void keep_times() {
    const Shape shape = {kMostDecodeBlocks, std::ssize(layers_), std::ssize(kDecodeParts),
                         std::ssize(kDecodeMarks)};
    if (memory_.timeline.view().empty())
      memory_.timeline =
          zeros(shape.count() * size_of(DType::i64), model_.device()).part(0, shape, DType::i64);
    step_.timeline = memory_.timeline;
    timeline_->last = [kept = memory_.timeline] { return timed_work(copy_on(Device::cpu, kept)); };
  }

  void show_rope() {
    if (!step_.rope_cos_out.empty()) {
      show("rope.cos", a_.rope_cos);
      show("rope.sin", a_.rope_sin);
      return;
    }
    show_angles("rope.cos", a_.rope_cos, batch_.cos);
    show_angles("rope.sin", a_.rope_sin, batch_.sin);
  }

  void show_all() {
    layer_ = -1;
    show("embed", step_.embed_out);
    show_rope();
    for (const DecodeLayer& layer : layers_) {
      ++layer_;
      show_layer(layer);
    }
    layer_ = -1;
    show("final.norm", step_.final_norm_out);
    probe_.logits(point("logits"), a_.logits);
    probe_.logits(point("token"), a_.token);
  }

  void show_layer(const DecodeLayer& l) {
    show("attn.norm", l.norm_out);
    show("attn.q", l.q_out);
    show("attn.k", l.k_out);
    show("attn.v", l.v_out);
    if (config_.qk_norm) {
      show("attn.q_norm", l.q_norm_out);
      show("attn.k_norm", l.k_norm_out);
    }
    show("attn.q_rope", l.q_rope_out);
    show("attn.k_rope", l.k_rope_out);
    show_kv(l.cache);
    show("attn.out", l.attention_out);
    show("attn.o", l.o_out);
    show("attn.residual", l.attn_residual_out);
    show("mlp.norm", l.mlp_norm_out);
    show("mlp.gate", l.gate_out);
    show("mlp.up", l.up_out);
    show("mlp.act", l.act_out);
    show("mlp.down", l.down_out);
    show("mlp.residual", l.mlp_residual_out);
  }

  StepMemory& memory_;
  StepMemories& shared_;
  std::shared_ptr<Timeline> timeline_;
  DecodeStep step_;
  std::vector<DecodeLayer> layers_;
  bool taps_ = false;
};

bool adds_one_each(const Batch& batch) {
  return batch.size() == batch.context_length.view().count() &&
         batch.size() == batch.logit_rows.view().count();
}

void check_model(const ModelConfig& config, DType dtype, const Ops& ops) {
  check(whole_fused_ops(ops).decode_step != nullptr,
        "--executor persistent wants the ops of a CUDA device of capability 9.0 or later, none of "
        "them replaced: add --device cuda, and leave out --ops and --fault");
  check(dtype == DType::bf16, "--executor persistent computes in bf16, found --dtype {}",
        name_of(dtype));
  check(config.experts.count == 0 && !config.o_bias &&
            std::ranges::all_of(config.window, [](int64_t window) { return window == 0; }),
        "--executor persistent is built for models without experts, sliding windows and a bias of "
        "attn.o, found one with them: use --executor ops");
}

}  // namespace

MakeExecutor persistent_executors(const ModelConfig& config, DType dtype, const Ops& ops,
                                  std::shared_ptr<Timeline> timeline) {
  check_model(config, dtype, ops);
  auto memories = std::make_shared<StepMemories>();
  memories->timeline = std::move(timeline);
  return [memories](const PassParts& pass) -> std::unique_ptr<LayerExecutor> {
    if (!adds_one_each(pass.batch)) return make_own_executor(pass);
    StepMemory& memory = memories->of.try_emplace(pass.batch.size(), pass.model).first->second;
    const bool stay = pass.activations.lifetime() == Activations::Lifetime::pass;
    const PassParts kept = {pass.model, pass.batch, stay ? pass.activations : memory.activations,
                            pass.probe};
    return std::make_unique<PersistentExecutor>(kept, memory, *memories);
  };
}

}  // namespace lockstep
