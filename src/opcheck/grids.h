// The shapes of each op, as tables.
#pragma once

#include <vector>

#include "src/opcheck/op_grid.h"

namespace lockstep {

// Each call makes its table anew; op_grid.h's grid_of() sorts it by size.
std::vector<GridCase> gather_grid();
std::vector<GridCase> norm_grid();
std::vector<GridCase> matmul_grid();
std::vector<GridCase> rope_grid();
std::vector<GridCase> cache_grid();
std::vector<GridCase> attention_grid();
std::vector<GridCase> silu_grid();
std::vector<GridCase> add_grid();
std::vector<GridCase> argmax_grid();
std::vector<GridCase> top_k_grid();
std::vector<GridCase> softmax_grid();
std::vector<GridCase> expert_grid();
std::vector<GridCase> weighted_sum_grid();
std::vector<GridCase> add_norm_grid();
std::vector<GridCase> qkv_grid();
std::vector<GridCase> qk_norm_rope_grid();
std::vector<GridCase> gate_up_grid();

}  // namespace lockstep
