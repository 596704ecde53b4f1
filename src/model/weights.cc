// A checkpoint's tensors by meaning, for the engine's device and dtype. On the CPU nothing is
// copied where the file has that dtype already: the mapped file is what products read.
#include "src/model/weights.h"

#include "kernels/base/check.h"

namespace lockstep {

namespace {

// Said before anything is copied, because the sentence for a single tensor speaks of pages.
void check_room(const Checkpoint& checkpoint, DType dtype, Device device) {
  const int64_t needed = Weights::memory(checkpoint.config(), dtype, device);
  const int64_t left = device_memory_left(device);
  check(needed <= left,
        "the weights need {} bytes as {}, and the device has {} left: use a shorter --dtype, a "
        "smaller model or --device cpu",
        needed, name_of(dtype), left);
}

}  // namespace

int64_t Weights::memory(const ModelConfig& config, DType dtype, Device device) {
  int64_t bytes = 0;
  for (const auto& [name, shape] : needed_tensors(config))
    bytes += memory_for(shape.count() * size_of(dtype), device);
  return bytes;
}

// On the CPU cast() returns the mapped file itself where it has the dtype, and leaves the copy
// empty.
TensorView Weights::load(const TensorView& tensor, DType dtype, Device device) {
  if (device == Device::cpu) return cast(tensor, dtype, copies_.emplace_back());
  Tensor converted;
  return copies_.emplace_back(copy_on(device, cast(tensor, dtype, converted)));
}

Weights::Weights(const Checkpoint& checkpoint, DType dtype, Device device) {
  const ModelConfig& config = checkpoint.config();
  if (device != Device::cpu) check_room(checkpoint, dtype, device);
  const auto get = [&](const std::string& name) {
    return load(checkpoint.tensor(name), dtype, device);
  };
  // The codes of a quantised weight must not be cast: whoever adds a kind keeps them as they are.
  const auto get_weight = [&](const std::string& name) -> WeightView {
    return load(plain_codes(name, checkpoint.weight(name)), dtype, device);
  };
  embed = get("model.embed_tokens.weight");
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    LayerWeights& layer = layers.emplace_back();
    layer.attn_norm = get(at + "input_layernorm.weight");
    layer.q = get_weight(at + "self_attn.q_proj.weight");
    layer.k = get_weight(at + "self_attn.k_proj.weight");
    layer.v = get_weight(at + "self_attn.v_proj.weight");
    layer.o = get_weight(at + "self_attn.o_proj.weight");
    if (config.qkv_bias) {
      layer.q_bias = get(at + "self_attn.q_proj.bias");
      layer.k_bias = get(at + "self_attn.k_proj.bias");
      layer.v_bias = get(at + "self_attn.v_proj.bias");
    }
    if (config.o_bias) layer.o_bias = get(at + "self_attn.o_proj.bias");
    if (config.qk_norm) {
      layer.q_norm = get(at + "self_attn.q_norm.weight");
      layer.k_norm = get(at + "self_attn.k_norm.weight");
    }
    layer.mlp_norm = get(at + "post_attention_layernorm.weight");
    if (config.experts.in(i)) {
      layer.router = get_weight(at + "mlp.gate.weight");
      for (int64_t e = 0; e < config.experts.count; ++e) {
        const std::string expert = at + "mlp.experts." + std::to_string(e) + ".";
        layer.expert_gate.push_back(get(expert + "gate_proj.weight"));
        layer.expert_up.push_back(get(expert + "up_proj.weight"));
        layer.expert_down.push_back(get(expert + "down_proj.weight"));
      }
      continue;
    }
    layer.gate = get_weight(at + "mlp.gate_proj.weight");
    layer.up = get_weight(at + "mlp.up_proj.weight");
    layer.down = get_weight(at + "mlp.down_proj.weight");
  }
  final_norm = get("model.norm.weight");
  // A tied head must be the very same memory: a second converted copy would double the largest
  // tensor.
  lm_head = config.tied ? WeightView(embed) : get_weight("lm_head.weight");
}

}  // namespace lockstep
