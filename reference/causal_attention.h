#pragma once

#include <cstdint>

namespace at {
class Tensor;
}

namespace lockstep {

// The attention of the last positions of a request to all up to themselves: q [queries, heads,
// head_dim], k and v [keys, kv heads, head_dim], of one dtype, fp32 or fp64, in which scores and
// probabilities are. window: of the last keys that each query sees; 0: all. Returns a tensor as q.
// In fp32 it has the bits of LibTorch's formula. One tensor of all scores, [heads, queries, keys],
// is there at a time.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            int64_t window);
// How many queries of q to take at once where there is room for so many, at least 1 and at most
// those.
int64_t queries_at_once(const at::Tensor& q, int64_t room);

}  // namespace lockstep
