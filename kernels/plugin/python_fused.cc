// Fused ops of a user's Python file. Each entry hands over its arguments in the order in which the
// function takes them, outputs first. Outputs are memory of our own with guard bytes around it, and
// are copied to the model when the call has returned and was found clean.
#include "kernels/plugin/python_fused.h"

#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/plugin/fused_entries.h"
#include "kernels/plugin/python_call.h"

namespace lockstep {
namespace {

using Process = std::shared_ptr<PythonProcess>;

// The arguments of one call, outputs first, with the names of the inputs that are there.
class FusedCall {
 public:
  FusedCall(const FusedRow& row, const Process& process, const OpContext& context)
      : op_(row.name), process_(*process), who_(who_is_called(row.name, *process, context)) {}

  void output(GuardedOutput& out) { call_.add_output(out); }
  void output(const KvCache& cache) { call_.add_output(cache); }
  // A tensor that is none is not compared afterwards, so that its name would shift all others.
  void input(std::string_view name, const TensorView& tensor) {
    if (!tensor.empty()) names_.push_back(name);
    call_.add(tensor);
  }
  void inputs(std::string_view name, const std::vector<TensorView>& tensors) {
    for (const TensorView& tensor : tensors)
      if (!tensor.empty()) names_.push_back(name);
    call_.add(tensors);
  }
  void batch(const AttentionBatch& batch) {
    for (const char* name : {"query_start", "context_length", "page_table"}) names_.push_back(name);
    call_.add(batch);
  }
  // The weights of a layer, each as an input().
  void layer() { call_.say("layer"); }
  void number(float x) { call_.add(x); }
  void number(int64_t x) { call_.add(x); }

  template <typename... Outputs>
  void run(Outputs&... outputs) {
    call_.run(process_, who_, op_, names_);
    (outputs.take(who_), ...);
  }

 private:
  std::string_view op_;
  PythonProcess& process_;
  const std::string who_;
  PythonCall call_;
  std::vector<std::string_view> names_;
};

void put_add_rms_norm(FusedOps& fused, const Process& process) {
  fused.add_rms_norm = [=](const OpContext& context, const TensorView& out,
                           const AddNormInput& in) {
    FusedCall call(kAddRmsNorm, process, context);
    GuardedOutput normed(out), sum(in.sum);
    call.output(normed), call.output(sum);
    call.input("a", in.a), call.input("b", in.b), call.input("weight", in.weight);
    call.number(in.eps);
    call.run(normed, sum);
  };
}

void put_qkv_matmul(FusedOps& fused, const Process& process) {
  fused.qkv_matmul = [=](const OpContext& context, std::span<const Linear> all, const TensorView& x,
                         const AddNormInput*) {
    FusedCall call(kQkvMatmul, process, context);
    check(all.size() == 3, "{} computes q, k and v, found {} products", kQkvMatmul.name,
          all.size());
    GuardedOutput q(all[0].out), k(all[1].out), v(all[2].out);
    call.output(q), call.output(k), call.output(v);
    call.input("x", x);
    std::vector<TensorView> weights, biases;
    for (const Linear& linear : all) {
      weights.push_back(plain_codes("--ops", linear.weight));
      biases.push_back(linear.bias);
    }
    call.inputs("weights", weights), call.inputs("biases", biases);
    call.run(q, k, v);
  };
}

void put_qk_norm_rope_kv_write(FusedOps& fused, const Process& process) {
  fused.qk_norm_rope_kv_write = [=](const OpContext& context, const QkNormRopeKvWrite& a) {
    FusedCall call(kQkNormRopeKvWrite, process, context);
    GuardedOutput q_rope(a.q_rope);
    call.output(q_rope), call.output(a.cache);
    call.input("q", a.q), call.input("k", a.k), call.input("v", a.v);
    call.input("q_weight", a.q_weight), call.input("k_weight", a.k_weight);
    call.number(a.eps);
    call.input("cos", a.cos), call.input("sin", a.sin);
    call.input("positions", a.positions), call.input("slots", a.slots);
    call.run(q_rope);
    read_back(a.k_rope, a.cache.k, a.slots);
  };
}

void put_gate_up_silu(FusedOps& fused, const Process& process) {
  fused.gate_up_silu = [=](const OpContext& context, const TensorView& out, const TensorView& x,
                           const WeightView& gate, const WeightView& up, const TensorView&,
                           const TensorView&, const AddNormInput*) {
    FusedCall call(kGateUpSilu, process, context);
    GuardedOutput act(out);
    call.output(act);
    call.input("x", x);
    call.input("gate_weight", plain_codes("--ops", gate));
    call.input("up_weight", plain_codes("--ops", up));
    call.run(act);
  };
}

void put_decoder_layer(FusedOps& fused, const Process& process) {
  fused.decoder_layer = [=](const OpContext& context, const WholeLayer& a) {
    FusedCall call(kDecoderLayer, process, context);
    GuardedOutput out(a.out);
    call.output(out), call.output(a.cache);
    call.input("x", a.x);
    const auto weight = [&](std::string_view name, const WeightView& w) {
      call.input(name, plain_codes("--ops", w));
    };
    // In the order of LayerWeights in python_ops.py.
    call.layer();
    call.input("attn_norm", a.attn_norm);
    weight("q", a.q), weight("k", a.k), weight("v", a.v);
    call.input("q_bias", a.q_bias), call.input("k_bias", a.k_bias);
    call.input("v_bias", a.v_bias);
    call.input("q_norm", a.q_norm), call.input("k_norm", a.k_norm);
    weight("o", a.o);
    call.input("o_bias", a.o_bias), call.input("mlp_norm", a.mlp_norm);
    weight("gate", a.gate), weight("up", a.up), weight("down", a.down);
    call.number(a.eps);
    call.input("cos", a.cos), call.input("sin", a.sin);
    call.input("positions", a.positions), call.input("slots", a.slots);
    call.batch(a.batch);
    call.number(a.scale), call.number(a.window);
    call.run(out);
    read_back(a.k_rope, a.cache.k, a.slots);
    read_back(a.v_kept, a.cache.v, a.slots);
  };
}

}  // namespace

void put_python_fused(FusedOps& fused, const FusedRow& row, const Process& process) {
  using Put = void (*)(FusedOps&, const Process&);
  static constexpr std::pair<std::string_view, Put> kAll[] = {
      {kAddRmsNorm.name, put_add_rms_norm},
      {kQkvMatmul.name, put_qkv_matmul},
      {kQkNormRopeKvWrite.name, put_qk_norm_rope_kv_write},
      {kGateUpSilu.name, put_gate_up_silu},
      {kDecoderLayer.name, put_decoder_layer}};
  static_assert(std::size(kAll) == kFusedOps.size());
  for (const auto& [name, put] : kAll) {
    if (name != row.name) continue;
    put(fused, process);
    fused.of_user.push_back(name);
  }
}

}  // namespace lockstep
