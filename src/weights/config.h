// config.json as the engine reads it. One struct for all supported architectures: what differs
// between them is a field here and no class. The reference reads the same file by a reader of its
// own (reference/recipe.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/names.h"

namespace lockstep {

// How rotary frequencies are made from the base; the formulas are in rope_tables.cc.
enum class RopeType : uint8_t { standard, linear, dynamic, yarn, llama3, longrope };
template <>
inline constexpr auto kNamesOf<RopeType> = std::to_array<const char*>(
    {"default", "linear", "dynamic", "yarn", "llama3", "longrope"});  // Hugging Face's

// config.json's rope_parameters, or rope_theta with rope_scaling, after defaults.
struct RopeConfig {
  RopeType type = RopeType::standard;
  double theta = 10000;
  double factor = 1;
  int64_t original_max_positions = 0;                // original_max_position_embeddings
  double attention_factor = 0;                       // 0: not given
  double beta_fast = 32, beta_slow = 1;              // yarn
  double mscale = 0, mscale_all_dim = 0;             // yarn; 0: not given
  bool truncate = true;                              // yarn
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  std::vector<double> short_factor, long_factor;     // longrope

  // Whether its frequencies depend on how long the request is.
  bool depends_on_length() const;
};

// The contents of config.json, in one spelling. Sizes are in elements, positions in tokens.
struct ModelConfig {
  // A mixture of experts in place of the MLP: a router gives each token `chosen` of `count`
  // experts.
  struct Experts {
    int64_t count = 0;  // 0: the model has none
    int64_t chosen = 0;
    int64_t intermediate = 0;  // of one expert
    bool normalised = false;   // the weights of the chosen ones are divided by their sum
    std::vector<int> layers;   // that have experts, ascending

    bool in(int64_t layer) const;
  };

  std::string architecture;  // "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"
  std::string model_type;    // "qwen2", "qwen3", "qwen3_moe"
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate = 0;  // of a layer with one MLP
  int64_t vocab = 0;
  int64_t max_positions = 0;
  double norm_eps = 1e-6;
  bool tied = false;          // lm_head is the embedding
  bool qkv_bias = false;      // q, k, v have a bias
  bool o_bias = false;        // so has o
  bool qk_norm = false;       // RMSNorm over head_dim on q and k, before RoPE
  DType dtype = DType::bf16;  // of the stored weights, as declared
  RopeConfig rope;
  Experts experts;
  std::vector<int64_t> window;  // by layer: keys that a query sees, itself included; 0: all
  std::vector<int32_t> eos;     // ids that end a text, from config and generation_config

  // K and V of all layers.
  int64_t kv_bytes_per_token(DType kv_dtype) const {
    return 2 * layers * kv_heads * head_dim * size_of(kv_dtype);
  }
};

// Reads DIR/config.json (and generation_config.json, where there is one). Throws Error on an
// unknown architecture, rope type or activation, on sizes that do not fit each other, and on what
// is not JSON.
ModelConfig read_config(const std::string& dir);

}  // namespace lockstep
