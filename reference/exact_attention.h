// softmax(q k^T / sqrt(d)) v in fp64 with all that its budget needs, for grouped heads and any
// range of keys a query.
#pragma once

#include <cstdint>
#include <vector>

#include "src/judge/oracle.h"

namespace at {
class Tensor;
}

namespace lockstep {

// The keys that a query sees: [begin, end).
struct KeyRange {
  int64_t begin, end;
};

// How an attention is computed. The contract decides what is rounded on the way to the result;
// everything else is fp64.
struct AttentionCall {
  RoundingContract contract = RoundingContract::fused;
  DType dtype = DType::bf16;  // that its contract rounds to, where it names no other
  int threads = 0;            // as in ReferenceOptions, on the CPU
  bool for_budget = true;     // false: Exact::want alone, all else is left empty
};

// The numbers of Exact for attention, left where they were computed, all but its shape: q [queries,
// kv heads, group, head_dim], k and v [kv heads, keys, head_dim], all fp64 and on one device;
// `seen` has one range a query, not empty. A non-finite number in a key that a query does not see
// does not reach it. On a device it takes 1 GB more than its arguments and results, and five times
// K, at most. Heads of one group share their key head. Results do not depend on the number of
// threads: each query is computed by one.
Exact exact_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const std::vector<KeyRange>& seen, const AttentionCall& call);

}  // namespace lockstep
