#pragma once

#include <cstdint>

namespace lockstep {

// A bad index, which only the values of an argument show. An op on the CPU looks before it computes
// and throws at once. A twin on a device finds it while it runs: it reads and writes nothing there
// (an output row that lacks its input is NaN), keeps the first one found, and DeviceRuntime::wait
// throws it. A value, which a device writes and the host copies as it lies.
struct BadIndex {
  enum class Of : int32_t {
    none,
    table_row,       // gather_rows: limit rows of the table, found at index `at`
    position,        // rope: limit rows of the tables, found for token `at`
    slot,            // kv_write: limit slots of the pool, found for token `at`
    gathered_page,   // kv_gather: limit pages of the pool, found at entry `at`
    gathered_table,  // kv_gather: limit entries wanted, found so many, each of `at` positions
    attended_page,   // paged_attention, as gathered_page
    attended_table,  // paged_attention, as gathered_table
    query_start,     // paged_attention: limit queries, found first and `at` last
    query_order,     // paged_attention: found after limit, for request `at`
    context_length,  // paged_attention: found for request `at`
    routed_expert,   // routing_weights: limit logits, found at index `at`
    used_expert,     // expert_matmul: limit experts, found at index `at`
    step_wait,       // decode_step: block `at` waited limit seconds in layer found (-1: for memory)
    digest_wait,     // digest: block `at` waited limit seconds for a decode step
  };
  Of of = Of::none;
  int64_t limit = 0, found = 0, at = 0;
};

// Throws Error with the sentence for it.
[[noreturn]] void refuse(const BadIndex& bad);

}  // namespace lockstep
