// The traits that the wrong cases of an op have in common.
#pragma once

#include <string>
#include <vector>

#include "src/opcheck/op_grid.h"

namespace lockstep {

// One case that the op computed, and whether its result was wrong.
struct TriedCase {
  std::vector<Trait> traits;
  bool wrong = false;
};

// A sentence's end about the wrong cases, such as "all 9 with head_dim 80, and no other": of a
// trait, of numbers from one on, or of two traits; "only of 12 with ..." where some of those are
// right. Empty: all cases are wrong, or fewer than two, or they have nothing in common.
std::string common_to(const std::vector<TriedCase>& tried);

}  // namespace lockstep
