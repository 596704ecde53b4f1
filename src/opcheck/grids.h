// The shapes of each op, as tables. To add an op's: a function that makes them, and its row, in
// row_grids.cc or attention_grids.cc.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "src/opcheck/op_grid.h"

namespace lockstep {

struct OpGrid {
  std::string_view op;               // its name in lockstep_ops.h
  std::vector<GridCase> (*cases)();  // made anew by each call, in no order
};
std::span<const OpGrid> row_grids();        // of ops whose rows know nothing of each other
std::span<const OpGrid> attention_grids();  // of ops that know positions and pages

}  // namespace lockstep
