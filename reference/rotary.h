#pragma once

#include <vector>

#include "src/weights/rope_tables.h"

namespace lockstep {

// The rotary angles of some tokens, head_dim / 2 entries a token.
struct Angles {
  std::vector<double> cos, sin;  // times the attention factor
  std::vector<double> angle;     // position * inv_freq, in fp64
};

// Looks up angles, of which the engine is handed the same fp32 numbers (here widened exactly).
class Rotary {
 public:
  // Borrows the configuration. fp64_tables: angles, cos and sin in fp64 throughout instead.
  Rotary(const ModelConfig& config, bool fp64_tables);

  // Adds those of a token at `position` of a request that has `length` tokens after its pass.
  void append(Angles& angles, int64_t position, int64_t length);

 private:
  const ModelConfig& config_;
  bool fp64_tables_;
  int64_t length_ = 0;  // that frequencies_ are for; 0: not yet made
  RopeFrequencies frequencies_;
};

}  // namespace lockstep
