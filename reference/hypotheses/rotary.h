// The right rotation, of which two tables have parts otherwise.
#pragma once

#include <vector>

#include "reference/hypotheses/asked.h"

namespace lockstep {

// By the reference's own recipe, as the class Rotary makes angles: a way to go wrong changes one
// thing of it and leaves the rest, so that what it explains is that thing.
struct RightRotation {
  // How the checkpoint of the op turns its rows.
  static const RotaryRecipe& recipe_of(const Asked& a);
  // The longest context of the pass: tables that depend on the length (dynamic, longrope) are made
  // for it.
  static int64_t length_of(const Asked& a);
  // The position of each row of the pass in its request.
  static std::vector<double> right_positions(const Asked& a);
  // The input's rows turned as is right at these positions, one a row.
  static at::Tensor at_positions(const Asked& a, const std::vector<double>& positions);
  // The same of other rows, [rows, heads, head_dim], than those of the op's input.
  static at::Tensor of(const Asked& a, const at::Tensor& x, const std::vector<double>& positions);
};

// A table of its own for the positions.
std::span<const Hypothesis> rope_position_hypotheses();

}  // namespace lockstep
