// Bugs of what is written to the K/V cache and read from it. A misread page table is given to
// attention and to kv_gather alike, so that attn.kv shows what attention has read.
//
// Writes are wronged through their slots, which say where each row's K and V go; reads through the
// page tables. Slots and tables are copied first: the engine's own stay right, as they do when a
// kernel misreads them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "src/faults/seeds.h"

namespace lockstep {
namespace {

// The page tables of a pass: as the engine made them, and as a bug reads them.
struct Tables {
  Tensor right, wrong;  // [requests, most pages]
};

// Has attention, and what shows its K and V, read through tables that `misread` made wrong.
void seed_tables(const Seams& seams, const FaultRequest& request,
                 void (*misread)(const TensorView& right, const TensorView& wrong)) {
  const auto tables = std::make_shared<Tables>();
  add_to(seams.hooks.before_pass, [tables, misread](Batch& batch) {
    *tables = {copy_of(batch.page_table), copy_of(batch.page_table)};
    misread(tables->right, tables->wrong);
  });
  inject(seams, &Ops::kv_gather, request,
         [tables](const auto& inner, const OpContext& context, TensorView out, KvCache cache,
                  TensorView table) {
           const TensorView& right = tables->right;
           const auto is_row = [&](int64_t r) {
             const size_t bytes = table.bytes();
             return table.count() == right.row_size() &&
                    std::memcmp(right.slice(r, 1).data, table.data, bytes) == 0;
           };
           int64_t r = 0;  // an op that gathers is not told whose pages these are
           while (r < right.rows() && !is_row(r)) ++r;
           if (r == right.rows()) return inner(context, out, cache, table);
           inner(context, out, cache, tables->wrong.view().slice(r, 1).reshaped({table.count()}));
         });
  inject(seams, &Ops::paged_attention, request,
         [tables](const auto& inner, const OpContext& context, TensorView out, TensorView q,
                  KvCache cache, AttentionBatch batch, float scale, int64_t window) {
           batch.page_table = tables->wrong;
           inner(context, out, q, cache, batch, scale, window);
         });
}

// The slot of the position before that of row t.
int64_t slot_before(const PassInfo& pass, size_t t, int64_t page_size) {
  const Row& row = pass.rows[t].row;
  const auto table = std::ranges::find(pass.pages, row.request, &RequestPages::request);
  const int64_t position = row.position - 1;
  return table->pages[position / page_size] * page_size + position % page_size;
}

void seed_wrong_page(const Seams& seams, const FaultRequest& request) {
  seed_tables(seams, request, [](const TensorView& right, const TensorView& wrong) {
    const auto* first = right.as<const int32_t>();
    auto* second = wrong.as<int32_t>() + wrong.row_size();
    for (int64_t i = 0; right.rows() > 1 && i < right.row_size(); ++i)
      if (first[i] >= 0 && second[i] >= 0) second[i] = first[i];
  });
}

// The width of the tables changes from pass to pass; a kernel that keeps an old one reads rows that
// begin earlier.
void seed_page_table_stride(const Seams& seams, const FaultRequest& request) {
  seed_tables(seams, request, [](const TensorView& right, const TensorView& wrong) {
    const int64_t width = right.row_size();
    for (int64_t r = 1; r < right.rows(); ++r)
      for (int64_t i = 0; i < width; ++i) {
        const int32_t page = right.as<const int32_t>()[r * (width - 1) + i];
        // Padding is read as a page too: the first one, as -1 is outside the pool.
        wrong.as<int32_t>()[r * width + i] = std::max(page, 0);
      }
  });
}

// Offsets count elements, so that a pool of billions of them is needed for a real overflow; a
// smaller size shows the same in a small pool.
void seed_slot_offset_32_bit(const Seams& seams, const FaultRequest& request) {
  check(request.size >= 1 && request.size <= 62 && request.size == std::floor(request.size),
        "fault {} has as its size a number of bits from 1 to 62, found {}", request.name,
        request.size);
  const int64_t range = int64_t{1} << static_cast<int>(request.size);
  inject(seams, &Ops::kv_write, request,
         [range](const auto& inner, const OpContext& context, KvCache cache, TensorView k,
                 TensorView v, TensorView slots) {
           const Tensor wrong = copy_of(slots);
           const int64_t row = cache.k.shape[2] * cache.k.shape[3];
           for (int64_t t = 0; t < slots.count(); ++t)
             if (int64_t& slot = wrong.as<int64_t>()[t]; slot >= 0) slot = slot * row % range / row;
           inner(context, cache, k, v, wrong);
         });
}

void seed_token_cached_twice(const Seams& seams, const FaultRequest& request) {
  inject(seams, &Ops::kv_write, request,
         [pass = pass_of(seams)](const auto& inner, const OpContext& context, KvCache cache,
                                 TensorView k, TensorView v, TensorView slots) {
           inner(context, cache, k, v, slots);
           const size_t bytes = cache.k.shape[2] * cache.k.shape[3] * size_of(cache.k.dtype);
           for (size_t t = 0; t < pass->rows.size(); ++t) {
             if (pass->rows[t].phase != Phase::decode) continue;
             const size_t from = slot_before(*pass, t, cache.page_size());
             const size_t to = slots.as<const int64_t>()[t];
             for (const TensorView& side : {cache.k, cache.v})
               std::memcpy(side.as<char>() + to * bytes, side.as<char>() + from * bytes, bytes);
           }
         });
}

// A negative slot is one that kv_write leaves out.
void seed_new_token_never_cached(const Seams& seams, const FaultRequest& request) {
  inject(seams, &Ops::kv_write, request,
         [pass = pass_of(seams)](const auto& inner, const OpContext& context, KvCache cache,
                                 TensorView k, TensorView v, TensorView slots) {
           const Tensor wrong = copy_of(slots);
           for (size_t t = 0; t < pass->rows.size(); ++t)
             if (pass->rows[t].phase == Phase::decode) wrong.as<int64_t>()[t] = -1;  // nowhere
           inner(context, cache, k, v, wrong);
         });
}

void seed_k_and_v_swapped(const Seams& seams, const FaultRequest& request) {
  inject(seams, &Ops::kv_write, request,
         [](const auto& inner, const OpContext& context, KvCache cache, TensorView k, TensorView v,
            TensorView slots) {
           std::swap(k, v);
           inner(context, cache, k, v, slots);
         });
}

constexpr Fault kCacheRows[] = {
    {"wrong-page",
     "attn.kv",
     "the second request of a pass reads through the first one's page table",
     "two requests in one pass",
     {},
     always,
     seed_wrong_page},
    {"page-table-stride",
     "attn.kv",
     "rows of the page table are taken to be one page narrower than they are",
     "two requests in one pass",
     {},
     always,
     seed_page_table_stride},
    {"slot-offset-32-bit",
     "attn.kv",
     "K and V are written to an offset of which only the low bits (size: how many) are kept",
     "a pool of more than 2^size elements",
     {31, 12},
     always,
     seed_slot_offset_32_bit},
    {"token-cached-twice",
     "attn.kv",
     "in a decode pass the token before is cached once more in place of the new one",
     "a decode pass",
     {},
     always,
     seed_token_cached_twice},
    {"new-token-never-cached",
     "attn.kv",
     "in a decode pass the new token is not cached",
     "a decode pass",
     {},
     always,
     seed_new_token_never_cached},
    {"k-and-v-swapped",
     "attn.kv",
     "K is cached as V and V as K",
     "any run",
     {},
     always,
     seed_k_and_v_swapped},
};

}  // namespace

constinit const std::span<const Fault> kCacheFaults = kCacheRows;

}  // namespace lockstep
