#include "kernels/kv_cache.h"

#include <cstring>

#include "kernels/arguments.h"
#include "kernels/thread_pool.h"

namespace lockstep {

void check_kv_cache(std::string_view op, const KvCache& cache) {
  check_storage(op, cache.k.dtype);
  check_rank(op, "the K cache", cache.k, 4);
  check_tensor(op, "the K cache", cache.k, cache.k.dtype, cache.k.shape);
  check_tensor(op, "the V cache", cache.v, cache.k.dtype, cache.k.shape);
  check(cache.page_size() > 0 && cache.k.shape[2] > 0 && cache.k.shape[3] > 0,
        "{} wants pages of at least one element, found a cache of shape {}: use a page size of 1 "
        "or more",
        op, cache.k.shape.text());
}

void kv_write(const OpContext&, KvCache cache, TensorView k, TensorView v, TensorView slots) {
  constexpr auto kOp = "kv_write";
  check_kv_cache(kOp, cache);
  check_rank(kOp, "slots", slots, 1);
  const int64_t tokens = slots.rows(), pool = cache.pages() * cache.page_size();
  const Shape rows = {tokens, cache.k.shape[2], cache.k.shape[3]};
  check_tensor(kOp, "k", k, cache.k.dtype, rows);
  check_tensor(kOp, "v", v, cache.k.dtype, rows);
  check_tensor(kOp, "slots", slots, DType::i64, {tokens});
  const auto* slot = slots.as<const int64_t>();
  for (int64_t t = 0; t < tokens; ++t)
    check(slot[t] < pool, "kv_write wants slots below {} ({} pages of {}), found {} for token {}",
          pool, cache.pages(), cache.page_size(), slot[t], t);
  const int64_t bytes = rows[1] * rows[2] * size_of(k.dtype);
  // On one thread: it is little work, and a slot named twice then holds the later row.
  for (int64_t t = 0; t < tokens; ++t) {
    if (slot[t] < 0) continue;
    const auto n = static_cast<size_t>(bytes);
    std::memcpy(cache.k.as<char>() + slot[t] * bytes, k.as<char>() + t * bytes, n);
    std::memcpy(cache.v.as<char>() + slot[t] * bytes, v.as<char>() + t * bytes, n);
  }
}

void kv_gather(const OpContext& context, TensorView out, KvCache cache, TensorView page_table) {
  constexpr auto kOp = "kv_gather";
  check_kv_cache(kOp, cache);
  check_rank(kOp, "out", out, 4);
  check_rank(kOp, "page_table", page_table, 1);
  const int64_t length = out.rows(), size = cache.page_size();
  check_tensor(kOp, "out", out, cache.k.dtype, {length, 2, cache.k.shape[2], cache.k.shape[3]});
  check_tensor(kOp, "page_table", page_table, DType::i32, page_table.shape);
  const int64_t pages = (length + size - 1) / size;
  check_pages(kOp, cache, page_table, 0, pages);
  const auto* page = page_table.as<const int32_t>();
  const int64_t bytes = cache.k.shape[2] * cache.k.shape[3] * size_of(out.dtype);
  parallel_for(context.threads, length, (int64_t{1} << 16) / bytes + 1,
               [&](int64_t begin, int64_t end) {
                 for (int64_t p = begin; p < end; ++p) {
                   const int64_t from = (page[p / size] * size + p % size) * bytes;
                   char* to = out.as<char>() + 2 * p * bytes;
                   std::memcpy(to, cache.k.as<char>() + from, static_cast<size_t>(bytes));
                   std::memcpy(to + bytes, cache.v.as<char>() + from, static_cast<size_t>(bytes));
                 }
               });
}

void check_pages(std::string_view op, const KvCache& cache, const TensorView& page_table,
                 int64_t first, int64_t last) {
  check(page_table.count() >= last,
        "{} wants a page table of at least {} pages of {} positions, found {}", op, last,
        cache.page_size(), page_table.count());
  for (int64_t i = first; i < last; ++i) {
    const int32_t page = page_table.as<const int32_t>()[i];
    check(page >= 0 && page < cache.pages(),
          "{} wants pages below the {} of the pool, found page {} at entry {} of a page table", op,
          cache.pages(), page, i);
  }
}

}  // namespace lockstep
