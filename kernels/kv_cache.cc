// Writes and reads of the paged cache copy bits. A slot is page * page_size + offset; a negative
// one writes nowhere, which is how rows that pad a batch are kept out.
#include "kernels/kv_cache.h"

#include <cstring>

#include "kernels/base/arguments.h"
#include "kernels/base/bad_index.h"
#include "kernels/base/thread_pool.h"

namespace lockstep {

void check_kv_cache(std::string_view op, const KvCache& cache, DeviceKind device) {
  check_storage(op, cache.k.dtype);
  check_rank(op, "the K cache", cache.k, 4);
  check_tensor(op, "the K cache", cache.k, cache.k.dtype, cache.k.shape, device);
  check_tensor(op, "the V cache", cache.v, cache.k.dtype, cache.k.shape, device);
  if (cache.page_size() <= 0 || cache.k.shape[2] <= 0 || cache.k.shape[3] <= 0)
    fail(
        "{} wants pages of at least one element, found a cache of shape {}: use a page size of 1 "
        "or more",
        op, cache.k.shape.text());
}

void check_kv_write(KvCache cache, TensorView k, TensorView v, TensorView slots,
                    DeviceKind device) {
  constexpr auto kOp = "kv_write";
  check_kv_cache(kOp, cache, device);
  check_rank(kOp, "slots", slots, 1);
  const Shape rows = {slots.rows(), cache.k.shape[2], cache.k.shape[3]};
  check_tensor(kOp, "k", k, cache.k.dtype, rows, device);
  check_tensor(kOp, "v", v, cache.k.dtype, rows, device);
  check_tensor(kOp, "slots", slots, DType::i64, {slots.rows()}, device);
}

void check_kv_gather(TensorView out, KvCache cache, TensorView page_table, DeviceKind device) {
  constexpr auto kOp = "kv_gather";
  check_kv_cache(kOp, cache, device);
  check_rank(kOp, "out", out, 4);
  check_rank(kOp, "page_table", page_table, 1);
  check_tensor(kOp, "out", out, cache.k.dtype, {out.rows(), 2, cache.k.shape[2], cache.k.shape[3]},
               device);
  check_tensor(kOp, "page_table", page_table, DType::i32, page_table.shape, device);
  const int64_t pages = (out.rows() + cache.page_size() - 1) / cache.page_size();
  if (page_table.count() < pages)
    refuse({BadIndex::Of::gathered_table, pages, page_table.count(), cache.page_size()});
}

// slot = page * page_size + offset; a negative one is of a row that is not kept.
void kv_write(const OpContext&, KvCache cache, TensorView k, TensorView v, TensorView slots) {
  check_kv_write(cache, k, v, slots, DeviceKind::cpu);
  const int64_t tokens = slots.rows(), pool = cache.pages() * cache.page_size();
  const auto* slot = slots.as<const int64_t>();
  for (int64_t t = 0; t < tokens; ++t)
    if (slot[t] >= pool) refuse({BadIndex::Of::slot, pool, slot[t], t});
  const int64_t bytes = k.row_size() * size_of(k.dtype);
  // On one thread: it is little work, and a slot named twice then holds the later row.
  for (int64_t t = 0; t < tokens; ++t) {
    if (slot[t] < 0) continue;
    const size_t n = bytes;
    std::memcpy(cache.k.as<char>() + slot[t] * bytes, k.as<char>() + t * bytes, n);
    std::memcpy(cache.v.as<char>() + slot[t] * bytes, v.as<char>() + t * bytes, n);
  }
}

// Rows of one request in the order of its positions, K and V side by side: what attention reads,
// made visible.
void kv_gather(const OpContext& context, TensorView out, KvCache cache, TensorView page_table) {
  check_kv_gather(out, cache, page_table, DeviceKind::cpu);
  const int64_t length = out.rows(), size = cache.page_size();
  const auto* page = page_table.as<const int32_t>();
  for (int64_t i = 0; i * size < length; ++i)
    if (page[i] < 0 || page[i] >= cache.pages())
      refuse({BadIndex::Of::gathered_page, cache.pages(), page[i], i});
  const int64_t bytes = cache.k.shape[2] * cache.k.shape[3] * size_of(out.dtype);
  parallel_for(context.threads, length, (int64_t{1} << 16) / bytes + 1,
               [&](int64_t begin, int64_t end) {
                 for (int64_t p = begin; p < end; ++p) {
                   const int64_t from = (page[p / size] * size + p % size) * bytes;
                   char* to = out.as<char>() + 2 * p * bytes;
                   std::memcpy(to, cache.k.as<char>() + from, bytes);
                   std::memcpy(to + bytes, cache.v.as<char>() + from, bytes);
                 }
               });
}

}  // namespace lockstep
