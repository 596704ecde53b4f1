#pragma once

#include <cstdint>

namespace at {
class Tensor;
}

namespace lockstep {

// LibTorch's attention of the last positions of a request to all up to themselves: q [queries,
// heads, head_dim], k and v [keys, kv heads, head_dim], of one dtype, in which scores and
// probabilities are. window: of the last keys that each query sees; 0: all. Returns a tensor as q.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            int64_t window);

}  // namespace lockstep
