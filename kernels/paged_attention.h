#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"
#include "kernels/kv_cache.h"

namespace lockstep {

// Which queries of a pass belong to which request, and where its K/V lies. Ragged: request r owns
// the queries query_start[r] .. query_start[r + 1], which are the last ones of its context.
struct AttentionBatch {
  TensorView query_start;     // [requests + 1]          int32
  TensorView context_length;  // [requests]              int32, keys of r, this pass's included
  TensorView page_table;      // [requests, most pages]  int32, padded with -1
};

// out[t, h] = softmax(q[t, h] K^T scale) V over the keys that query t may see. Query t of request r
// stands at position p = context_length[r] - (query_start[r + 1] - t) and sees the keys j with
// j <= p and, if window > 0, j > p - window. Head h reads K/V head h / (heads / kv_heads).
//   out, q  [tokens, heads, head_dim]  of the cache's dtype
// Scores, softmax (streaming over pages, running maximum) and sums in fp32; probabilities are never
// rounded to the dtype; rounds once, at the store. A query that sees no key gives zeros.
// Batch-invariant: the order of summation depends on the positions alone, not on the page size, the
// page table, the other requests or the threads. Source: Milakov and Gimelshein 2018 (online
// softmax), Kwon et al. 2023 (paged attention). Throws Error when a table names a page outside the
// pool or is too short.
void paged_attention(const OpContext& context, TensorView out, TensorView q, KvCache cache,
                     AttentionBatch batch, float scale, int64_t window);

// Its CUDA twin (cuda/cuda_ops.h).
decltype(paged_attention) paged_attention_cuda;

// Throws Error unless the arguments fit the contract above, on that device. Both twins call it.
// The values in `batch` are not looked at.
void check_paged_attention(TensorView out, TensorView q, KvCache cache, AttentionBatch batch,
                           int64_t window, DeviceKind device);

}  // namespace lockstep
