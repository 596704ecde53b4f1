// A model's arithmetic in config.json, as the reference reads it: by a reader of its own,
// so that a number that the engine misreads is not misread on both sides. Sizes of tensors it
// leaves to the checkpoint's reader, which holds them against the file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

// Formulas and defaults of transformers, modeling_rope_utils.py.
struct RotaryRecipe {
  std::string type = "default";  // default, linear, dynamic, yarn, llama3, longrope
  double theta = 10000;
  double factor = 1;
  int64_t trained = 0;          // max_position_embeddings
  int64_t first_trained = 0;    // original_max_position_embeddings
  double attention_factor = 0;  // 0: not given
  double beta_fast = 32, beta_slow = 1, mscale = 0, mscale_all_dim = 0;
  bool truncate = true;
  double low_freq_factor = 1, high_freq_factor = 4;
  std::vector<double> short_factor, long_factor;

  bool grows_with_length() const { return type == "dynamic" || type == "longrope"; }
  // Radians that a pair of dimensions turns by from one position to the next, for a request of
  // `length` tokens: [head_dim / 2], in fp64 throughout.
  std::vector<double> frequencies(int64_t head_dim, int64_t length) const;
  // How far the same in fp32 steps may be off, relative, in units of 2^-24, the rounding of the
  // angle itself included: 1 for a power and a division that are each rounded once.
  std::vector<double> frequency_errors(int64_t head_dim) const;
  // The factor of cosines and sines.
  double magnitude() const;
};

struct Recipe {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  double norm_eps = 1e-6;
  bool normalises_experts = false;  // their weights add up to 1
  std::vector<int64_t> window;      // by layer: keys that a query sees, itself included; 0: all
  RotaryRecipe rotary;
};

// Reads the text of a config.json; `whose` names it in errors. Throws Error on what is none.
Recipe read_recipe(const std::string& text, const std::string& whose);

}  // namespace lockstep
