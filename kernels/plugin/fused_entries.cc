// The fused entries of lockstep_ops.h: a library that has one of them serves the whole group of ops
// by one call, and is then judged over the group as a region.
#include "kernels/plugin/fused_entries.h"

#include "kernels/base/check.h"

namespace lockstep {
namespace {

// A function in C of the given type.
template <typename Function>
Function* as(void* symbol) {
  return reinterpret_cast<Function*>(symbol);
}

void put_add_rms_norm(FusedOps& fused, const UserOp& user, void* symbol) {
  const auto function = as<decltype(lockstep_add_rms_norm)>(symbol);
  fused.add_rms_norm = [=](const OpContext& context, const TensorView& out,
                           const AddNormInput& in) {
    ForeignCall call(user, context);
    const DLTensor *const a = call.tensor(in.a), *const b = call.tensor(in.b);
    const DLTensor* const weight = call.tensor(in.weight);
    call.run(function, call.output(out), call.output(in.sum), a, b, weight, in.eps);
  };
}

void put_qkv_matmul(FusedOps& fused, const UserOp& user, void* symbol) {
  const auto function = as<decltype(lockstep_qkv_matmul)>(symbol);
  fused.qkv_matmul = [=](const OpContext& context, std::span<const Linear> all, const TensorView& x,
                         const AddNormInput*) {
    check(all.size() == 3, "{} computes q, k and v, found {} products", user.at(context),
          all.size());
    ForeignCall call(user, context);
    const DLTensor* const input = call.tensor(x);
    const DLTensor *outs[3], *weights[3], *biases[3];
    for (size_t i = 0; i < 3; ++i) {
      outs[i] = call.output(all[i].out);
      weights[i] = call.tensor(plain_codes("--ops", all[i].weight));
      biases[i] = call.tensor(all[i].bias);
    }
    call.run(function, outs[0], outs[1], outs[2], input, weights, biases);
  };
}

void put_qk_norm_rope_kv_write(FusedOps& fused, const UserOp& user, void* symbol) {
  const auto function = as<decltype(lockstep_qk_norm_rope_kv_write)>(symbol);
  fused.qk_norm_rope_kv_write = [=](const OpContext& context, const QkNormRopeKvWrite& a) {
    ForeignCall call(user, context);
    const DLTensor *const q = call.tensor(a.q), *const k = call.tensor(a.k);
    const DLTensor* const v = call.tensor(a.v);
    const DLTensor* const q_weight = call.tensor(a.q_weight);
    const DLTensor* const k_weight = call.tensor(a.k_weight);
    const DLTensor *const cos = call.tensor(a.cos), *const sin = call.tensor(a.sin);
    const DLTensor* const positions = call.tensor(a.positions);
    const DLTensor* const slots = call.tensor(a.slots);
    call.run(function, call.output(a.q_rope), call.output(a.cache), q, k, v, q_weight, k_weight,
             a.eps, cos, sin, positions, slots);
    read_back(a.k_rope, a.cache.k, a.slots);
  };
}

void put_gate_up_silu(FusedOps& fused, const UserOp& user, void* symbol) {
  const auto function = as<decltype(lockstep_gate_up_silu)>(symbol);
  fused.gate_up_silu = [=](const OpContext& context, const TensorView& out, const TensorView& x,
                           const WeightView& gate, const WeightView& up, const TensorView&,
                           const TensorView&, const AddNormInput*) {
    ForeignCall call(user, context);
    const DLTensor* const input = call.tensor(x);
    const DLTensor* const gate_weight = call.tensor(plain_codes("--ops", gate));
    const DLTensor* const up_weight = call.tensor(plain_codes("--ops", up));
    call.run(function, call.output(out), input, gate_weight, up_weight);
  };
}

void put_decoder_layer(FusedOps& fused, const UserOp& user, void* symbol) {
  const auto function = as<decltype(lockstep_decoder_layer)>(symbol);
  fused.decoder_layer = [=](const OpContext& context, const WholeLayer& a) {
    ForeignCall call(user, context);
    const DLTensor* const x = call.tensor(a.x);
    const auto weight = [&](const WeightView& w) { return call.tensor(plain_codes("--ops", w)); };
    // Braces evaluate from left to right, as the names of the inputs are.
    const LockstepLayerWeights weights = {call.tensor(a.attn_norm),
                                          weight(a.q),
                                          weight(a.k),
                                          weight(a.v),
                                          call.tensor(a.q_bias),
                                          call.tensor(a.k_bias),
                                          call.tensor(a.v_bias),
                                          call.tensor(a.q_norm),
                                          call.tensor(a.k_norm),
                                          weight(a.o),
                                          call.tensor(a.o_bias),
                                          call.tensor(a.mlp_norm),
                                          weight(a.gate),
                                          weight(a.up),
                                          weight(a.down)};
    const DLTensor *const cos = call.tensor(a.cos), *const sin = call.tensor(a.sin);
    const DLTensor* const positions = call.tensor(a.positions);
    const DLTensor* const slots = call.tensor(a.slots);
    const LockstepBatch* const batch = std::get<0>(call.input(a.batch));
    call.run(function, call.output(a.out), call.output(a.cache), x, &weights, a.eps, cos, sin,
             positions, slots, batch, a.scale, a.window);
    read_back(a.k_rope, a.cache.k, a.slots);
    read_back(a.v_kept, a.cache.v, a.slots);
  };
}

struct Entry {
  const FusedRow& row;
  std::vector<std::string_view> inputs;  // in the order in which the call takes them
  void (*put)(FusedOps&, const UserOp&, void*);
};

const std::array<Entry, kFusedOps.size()>& entries() {
  static const std::array<Entry, kFusedOps.size()> all = {
      {{kAddRmsNorm, {"a", "b", "weight"}, put_add_rms_norm},
       {kQkvMatmul,
        {"x", "q_weight", "q_bias", "k_weight", "k_bias", "v_weight", "v_bias"},
        put_qkv_matmul},
       {kQkNormRopeKvWrite,
        {"q", "k", "v", "q_weight", "k_weight", "cos", "sin", "positions", "slots"},
        put_qk_norm_rope_kv_write},
       {kGateUpSilu, {"x", "gate_weight", "up_weight"}, put_gate_up_silu},
       {kDecoderLayer,
        {"x",           "attn_norm",
         "q",           "k",
         "v",           "q_bias",
         "k_bias",      "v_bias",
         "q_norm",      "k_norm",
         "o",           "o_bias",
         "mlp_norm",    "gate",
         "up",          "down",
         "cos",         "sin",
         "positions",   "slots",
         "query_start", "context_length",
         "page_table"},
        put_decoder_layer}}};
  return all;
}

}  // namespace

// A slot that is negative was not written.
void read_back(const TensorView& tap, const TensorView& side, const TensorView& slots) {
  if (tap.empty()) return;
  const Tensor written = copy_on(Device::cpu, slots);
  const TensorView rows =
      side.reshaped({side.shape[0] * side.shape[1], side.shape[2], side.shape[3]});
  for (int64_t t = 0; t < written.view().rows(); ++t)
    if (const int64_t slot = written.as<int64_t>()[t]; slot >= 0)
      copy(tap.slice(t, 1), rows.slice(slot, 1));
}

void put_fused(FusedOps& fused, const FusedRow& row, UserOp user, void* symbol) {
  for (const Entry& entry : entries()) {
    if (entry.row.name != row.name) continue;
    user.inputs = entry.inputs;
    entry.put(fused, user, symbol);
    fused.of_user.push_back(entry.row.name);
  }
}

}  // namespace lockstep
