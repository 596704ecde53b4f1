#pragma once

#include <string_view>

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// The paged cache of one layer. A slot is one token's place: slot = page * page_size + offset, in
// 64 bits, because pools pass 2^31 elements. Borrowed, as views are: the pool belongs to the
// engine.
struct KvCache {
  TensorView k;  // [pages, page_size, kv_heads, head_dim], after RoPE
  TensorView v;  // the same shape

  int64_t pages() const { return k.shape[0]; }
  int64_t page_size() const { return k.shape[1]; }
};

// Puts row t of k and v into slots[t]. Copies bits: class exact.
//   k, v   [tokens, kv_heads, head_dim]  of the cache's dtype
//   slots  [tokens]                      int64; a negative slot writes nowhere (a padded row)
// Throws Error when a slot is outside the pool.
void kv_write(const OpContext& context, KvCache cache, TensorView k, TensorView v,
              TensorView slots);

// Gathers the K/V cache of one request as an attention that follows `page_table` reads it: out[p,
// 0] is K and out[p, 1] is V of position p. Copies bits.
//   out         [length, 2, kv_heads, head_dim]  of the cache's dtype
//   page_table  [pages of the request]           int32
// Throws Error when the table is too short or names a page outside the pool.
void kv_gather(const OpContext& context, TensorView out, KvCache cache, TensorView page_table);

// Their CUDA twins (cuda/cuda_ops.h).
decltype(kv_write) kv_write_cuda;
decltype(kv_gather) kv_gather_cuda;

// Throws Error unless the arguments fit the contracts above, on that device. Both twins call them.
// The values of `slots` and `page_table` are not looked at.
void check_kv_write(KvCache cache, TensorView k, TensorView v, TensorView slots, DeviceKind device);
void check_kv_gather(TensorView out, KvCache cache, TensorView page_table, DeviceKind device);

// For ops that read the cache. Throws Error unless it is a cache on that device.
void check_kv_cache(std::string_view op, const KvCache& cache, DeviceKind device);

}  // namespace lockstep
