#pragma once

namespace at {
class Tensor;
}

namespace lockstep {

// sum p |v - o| of each head, in one pass over V: p [kv heads, group, keys], v [kv heads, keys,
// dim], o and the result, `spread`, [kv heads, group, dim]. All fp64 in host memory, the last axis
// of each together. LibTorch has no op for it but by a tensor of all keys and dims.
void sum_spread(const at::Tensor& p, const at::Tensor& v, const at::Tensor& o,
                const at::Tensor& spread);

}  // namespace lockstep
