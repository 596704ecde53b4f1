// Sums of products in the orders and precisions that kernels use. Norms take them of a row with
// itself, products of a token with a row of the weight, attention of a query with a key.
#pragma once

#include <cstdint>

#include "tests/other_hand/numbers.h"

namespace lockstep::other_hand {

// The sum of a[i] b[i]: a number of fp32 in a double, or of fp64 where that is said. `kind` is the
// dtype of the run, for those that round to it.
using Dot = double(const float* a, const float* b, int64_t n, Kind kind);

// Right: fp32 inside.
Dot dot_forward, dot_backward, dot_pairwise, dot_kahan, dot_fma;
Dot dot_lanes4, dot_lanes8, dot_lanes16;  // a SIMD register's worth of partial sums, then a tree
Dot dot_warp;                             // 32 lanes, then a butterfly of shuffles
Dot dot_split2, dot_split3, dot_split8;   // split-K, the last part the shortest
Dot dot_blocks32;                         // each block of 32 summed alone, then added
Dot dot_fp64;                             // fp64 inside
// Sixteen products at a time, exactly, and an fp32 accumulator that is cut off, not rounded: what
// tensor cores do, and within what a sum in fp32 may be off.
Dot dot_tensor_core;
Dot dot_3xtf32;  // each operand as a sum of two tf32 numbers: fp32 on tensor cores

// Wrong.
Dot dot_in_bf16, dot_in_fp16;  // every product and every partial sum in 16 bits
Dot dot_lanes_in_dtype;        // 32 lanes, each in the dtype of the run
Dot dot_fp22;                  // an accumulator of 14 significant bits, cut off every 32 products
Dot dot_split4_dtype;          // split-K with partials and their sum in the run's dtype
Dot dot_split4_partials;       // partials in the run's dtype, summed in fp32
Dot dot_split5_tail_lost;      // five parts of n / 5: the rest of the division is in none
Dot dot_last_vector_lost;      // the last 8 products are not summed
Dot dot_one_lane_lost;         // the last of 32 lanes is not added
Dot dot_tiles_of_128, dot_tiles_of_32;  // whole tiles alone, where there is one

}  // namespace lockstep::other_hand
