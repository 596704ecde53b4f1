#include "src/bench/shapes.h"

#include <array>

namespace lockstep {
namespace {

// Sizes as the models' own config.json has them; weights are random, which changes no time.
constexpr auto kShapes = std::to_array<BenchShape>({
    {"qwen3-0.6b", R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
      "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
      "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
      "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
      "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false,
      "eos_token_id": 151645, "torch_dtype": "bfloat16"})"},
    {"qwen2.5-0.5b", R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
      "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
      "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936,
      "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
      "tie_word_embeddings": true, "hidden_act": "silu", "use_sliding_window": false,
      "eos_token_id": 151645, "torch_dtype": "bfloat16"})"},
    {"qwen3-8b", R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
      "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
      "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
      "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
      "tie_word_embeddings": false, "hidden_act": "silu", "attention_bias": false,
      "eos_token_id": 151645, "torch_dtype": "bfloat16"})",
     true},
});

}  // namespace

std::span<const BenchShape> bench_shapes() { return kShapes; }

}  // namespace lockstep
