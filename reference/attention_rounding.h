// Where contracts of attention round before the keys have weights: the operands of q k, and the
// scores. Attention reads it, and the logarithms of the sums that its shares are divided by.
#pragma once

#include <cstdint>

#include "reference/exact_attention.h"

namespace lockstep {

// Whether the weights are stored in the dtype, and whether the scores are.
bool stores_weights(RoundingContract contract);
bool rounds_scores(RoundingContract contract);
// Whether a rounding on the way may go the other way in a right kernel, so that ties are summed up.
bool has_ties(RoundingContract contract);
// The factor of products of queries and keys.
double scale_of(int64_t head_dim, RoundingContract contract);

// The query as the contract multiplies it, and keys or values as it reads them: fp64 in and out.
at::Tensor rounded_query(const at::Tensor& q, const AttentionCall& call);
at::Tensor rounded_cache(const at::Tensor& x, const AttentionCall& call);

// The scores of a contract that rounds them, of raw = q k, before it is scaled, and sizes = sum
// |q k|. For a budget, by key: how far a right kernel's score may be from it, 0 where no border is
// near, and with what chance it is. Else the last two are left as they are, and `sizes` may be
// undefined.
void round_scores(const at::Tensor& raw, const at::Tensor& sizes, int64_t head_dim,
                  const AttentionCall& call, at::Tensor& scores, at::Tensor& moved,
                  at::Tensor& chance);

}  // namespace lockstep
