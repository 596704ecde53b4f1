// The arguments of one call of attention, as FlashAttention takes them, as a trace of that op.
#pragma once

#include <memory>
#include <string>

#include "src/weights/checkpoint.h"
#include "traces/trace.h"

namespace lockstep {

// A model that has nothing but that attention, and a trace of it with one pass. The op is layer 0
// attn.out. The reader holds its one pass in memory; nothing here refers to the file any more.
struct Bundle {
  Checkpoint checkpoint;
  std::unique_ptr<TraceReader> reader;
  bool has_out = false;             // the result that was stored
  std::vector<std::string> unread;  // arrays whose names say nothing here, or nothing more
};

// Reads arrays (bundle_arrays.h) by these names; others are left alone, and named.
//   q [tokens, heads, dim]   fp32, fp16 or bf16, as k and v
//   k, v [tokens, kv heads, dim], a row a key of each request; or a paged cache with block_tables,
//       [blocks, block size, kv heads, dim]
//   cu_seqlens (or cu_seqlens_q) [requests + 1]      where the queries of each request begin
//   cu_seqlens_k [requests + 1], or seqused_k (seq_lens, context_lens, cache_seqlens) [requests]
//       keys of each request; else as slot_mapping says, or as many as queries
//   block_tables (block_table, page_table) [requests, most blocks]   where the cache has the keys
//   slot_mapping [tokens]   where those of the queries themselves went
//   out (o) [tokens, heads, dim]  what was stored
//   window  [1]  keys that a query sees; 0 or none: all
// Queries are the last tokens of their requests, causal, scaled by dim^-0.5. Throws Error where an
// array is missing, or has another shape than its neighbours want, and where softmax_scale
// (sm_scale, scale), softcap (logits_soft_cap), causal (is_causal) or alibi_slopes say that the
// call computed something else.
Bundle open_bundle(const std::string& path);

}  // namespace lockstep
