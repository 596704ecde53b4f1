#pragma once

#include <vector>

#include "reference/exact_attention.h"

namespace lockstep {

// The sums of exact attention that follow from its weights alone, [queries, kv heads, group,
// head_dim], and `score`, [queries, kv heads, group]: contiguous, and filled in.
struct WeightedSums {
  const at::Tensor &out, &magnitude, &spread, &spread_squares, &weighted_squares, &score;
};

// Whether attend_in_kernels() can be asked: on a device, where this build has the kernels, of a
// contract that rounds nothing between q k and the result.
bool has_kernels_for(const at::Tensor& q, const AttentionCall& call);
// q, k, v and `seen` as of exact_attention(), all keys finite. scale: of q k, positive.
void attend_in_kernels(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const std::vector<KeyRange>& seen, double scale, const WeightedSums& sums);

}  // namespace lockstep
