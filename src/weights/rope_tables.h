// Rotary frequencies from a configuration, for the engine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/weights/config.h"

namespace lockstep {

// The rotary angles of a checkpoint, as the engine has them. The reference makes its own from
// config.json (reference/recipe.h), and the judge holds one to the other. Formulas: Hugging Face's
// modeling_rope_utils.

// Radians a position.
struct RopeFrequencies {
  std::vector<float> inv_freq;  // [head_dim / 2], as Hugging Face computes it, in fp32 steps
  double attention_factor = 1;  // multiplies cos and sin
  // cos and sin of position * inv_freq[j], times the attention factor, for j < head_dim / 2: angle,
  // cosine and product each rounded to fp32.
  void put_row(int64_t position, std::span<float> cos, std::span<float> sin) const;
};

// For a request of `length` tokens (dynamic and longrope depend on it, see
// RopeConfig::depends_on_length).
RopeFrequencies rope_frequencies(const ModelConfig& config, int64_t length);

}  // namespace lockstep
