// The rotary tables of the reference, made position by position in fp64, or in fp32 steps for a
// model that computes as an engine does.
#pragma once

#include <vector>

#include "reference/recipe.h"

namespace lockstep {

// The rotary angles of some tokens, head_dim / 2 entries a token.
struct Angles {
  std::vector<double> cos, sin;  // times the magnitude
  // The error that the angle may have in a kernel that makes it in fp32, in units of 2^-24:
  // position * frequency * frequency_errors.
  std::vector<double> error;
};

// Makes angles by the reference's own recipe, in fp64, or in fp32 where the model computes in that:
// then the angle is off by what any model in fp32 has there.
class Rotary {
 public:
  Rotary(const Recipe& recipe, bool in_fp32);

  // Adds those of a token at `position` of a request that has `length` tokens after its pass.
  // iterated: each angle is that of the pair before times theta^(-2 / head_dim), both rounded to
  // fp32, and scaled as the recipe says.
  void append(Angles& angles, int64_t position, int64_t length, bool iterated = false);

 private:
  RotaryRecipe recipe_;
  int64_t head_dim_;
  bool in_fp32_;
  double magnitude_;
  std::vector<double> errors_;
  int64_t length_ = 0;  // that frequencies_ are for; 0: not yet made
  std::vector<double> frequencies_;
};

}  // namespace lockstep
