// Attention in shares of the keys: each is an attention of its own over the keys of it that a query
// sees, and they are merged by the logarithms of their sums. All in fp64, on one device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/exact_attention.h"

namespace lockstep {

// Exact::want of log_sum_exp or, of is_partial, of partial_attention, with what their budgets need
// (src/judge/ops), of the arguments of exact_attention(). Of a logarithm Exact::weighted_squares is
// sum p^2, where the contract rounds the weights p. begins: OracleCall::shares. A share of which a
// query sees no key is 0, its logarithm -Inf.
Exact exact_shares(bool is_partial, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const std::vector<KeyRange>& seen, std::span<const int64_t> begins,
                   const AttentionCall& call);

// The attention that shares are merged to, with what its budget needs, each share in the place of a
// key: partial [rows, shares, heads, head_dim], lse [rows, shares, heads]. A weight is off by
// |lse| u, as a score of |lse| / sqrt(head_dim) would have it. Where that is more than weights can
// be off, the spreads are such that the result may lie anywhere among its shares, and nowhere else.
// Throws Error for other shapes.
Exact exact_merge(const at::Tensor& partial, const at::Tensor& lse, RoundingContract contract);

}  // namespace lockstep
