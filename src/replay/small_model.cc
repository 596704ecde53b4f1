// The model is written as a checkpoint and opened as one, so that it goes through the reader that
// every model goes through. The folder is deleted as the function ends; the weights stay mapped.
#include "src/replay/small_model.h"

#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/files/disk.h"
#include "probes/qwen_graph.h"
#include "src/weights/safetensors_writer.h"

namespace lockstep {
namespace {

const char* architecture_of(const std::string& family) {
  if (family == "qwen2") return "Qwen2ForCausalLM";
  return family == "qwen3" ? "Qwen3ForCausalLM" : "Qwen3MoeForCausalLM";
}

const char* name_in_config(DType dtype) {
  if (dtype == DType::f32) return "float32";
  return dtype == DType::f16 ? "float16" : "bfloat16";
}

std::string config_of(const SmallModel& model, DType dtype) {
  nlohmann::json config = {{"architectures", {architecture_of(model.family)}},
                           {"model_type", model.family},
                           {"dtype", name_in_config(dtype)},
                           {"hidden_act", "silu"},
                           {"hidden_size", model.hidden},
                           {"intermediate_size", model.intermediate},
                           {"num_hidden_layers", 1},
                           {"num_attention_heads", model.heads},
                           {"num_key_value_heads", model.kv_heads},
                           {"head_dim", model.head_dim},
                           {"rms_norm_eps", model.eps},
                           {"vocab_size", model.vocab},
                           {"max_position_embeddings", 1 << 22},
                           {"tie_word_embeddings", true},
                           {"attention_bias", model.bias},
                           {"rope_parameters", {{"rope_theta", 1e4}, {"rope_type", "default"}}},
                           {"use_sliding_window", model.window > 0}};
  if (model.window > 0) {
    config["sliding_window"] = model.window;
    config["max_window_layers"] = 0;
    config["layer_types"] = {"sliding_attention"};
  }
  if (model.family == "qwen3_moe") {
    config["num_experts"] = model.experts;
    config["num_experts_per_tok"] = model.chosen;
    config["moe_intermediate_size"] = model.intermediate;
    config["norm_topk_prob"] = model.normalised;
  }
  return config.dump();
}

}  // namespace

Graph graph_of(const SmallModel& model, bool rope_tables) {
  QwenShape shape{.layers = 1, .qk_norm = model.family != "qwen2", .rope_tables = rope_tables};
  if (model.family == "qwen3_moe") shape.expert_layers = {0};
  return qwen_graph(shape);
}

Checkpoint checkpoint_of(const SmallModel& model, DType dtype, const FillWeight& fill) {
  const ScratchFolder scratch;
  replace_file(scratch.path() + "/config.json", config_of(model, dtype), Durable::no);
  const ModelConfig read = read_config(scratch.path());
  std::vector<NamedTensor> tensors;
  std::deque<Tensor> held;
  for (const auto& [name, shape] : needed_tensors(read)) {
    const Tensor& weight = held.emplace_back(shape, dtype);
    std::memset(weight.as<char>(), 0, static_cast<size_t>(weight.view().bytes()));
    if (fill) fill(name, weight);
    tensors.push_back({name, weight});
  }
  std::map<std::string, size_t> offsets;
  replace_file(scratch.path() + "/model.safetensors",
               safetensors_of(std::move(tensors), {}, offsets), Durable::no);
  return Checkpoint::open(scratch.path());
}

}  // namespace lockstep
