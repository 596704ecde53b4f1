// The paged cache: what is written there, and what is read back.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/other_hand/families.h"
#include "tests/other_hand/numbers.h"

namespace lockstep::other_hand {
namespace {

// --- kv_write -----------------------------------------------------------------------------------

struct Write {
  Tensor k_cache, v_cache, k, v;
  int64_t page_size, heads, dim, tokens;
  const int64_t* slot;

  int64_t row() const { return heads * dim; }
  int64_t capacity() const { return k_cache.axis(0) * page_size; }
};

Write write_of(const LockstepCache* cache, const DLTensor* k, const DLTensor* v,
               const DLTensor* to) {
  return {Tensor(cache->k), Tensor(cache->v), Tensor(k),   Tensor(v), cache->k->shape[1],
          k->shape[1],      k->shape[2],      k->shape[0], slots(to)};
}

void copy_row(const Tensor& to, int64_t slot, const Tensor& from, int64_t token, int64_t row) {
  std::memcpy(to.bytes(slot * row), from.bytes(token * row),
              static_cast<size_t>(row * from.element_size()));
}

// Where a token goes, and which token's K and V go there.
using Place = int64_t(const Write& write, int64_t token);

int64_t own_slot(const Write& write, int64_t token) { return write.slot[token]; }
int64_t own_token(const Write&, int64_t token) { return token; }

template <Place* place, Place* of_k = own_token, Place* of_v = own_token>
const char* kv_write(const LockstepCall*, const LockstepCache* cache, const DLTensor* k,
                     const DLTensor* v, const DLTensor* to) {
  if (const char* why = refused({cache->k, cache->v, k, v})) return why;
  const Write write = write_of(cache, k, v, to);
  for (int64_t token = 0; token < write.tokens; ++token) {
    if (write.slot[token] < 0) continue;
    const int64_t slot = place(write, token);
    copy_row(write.k_cache, slot, write.k, of_k(write, token), write.row());
    copy_row(write.v_cache, slot, write.v, of_v(write, token), write.row());
  }
  return nullptr;
}

// Element by element, the last token first.
const char* kv_write_elements(const LockstepCall*, const LockstepCache* cache, const DLTensor* k,
                              const DLTensor* v, const DLTensor* to) {
  if (const char* why = refused({cache->k, cache->v, k, v})) return why;
  const Write write = write_of(cache, k, v, to);
  for (int64_t token = write.tokens - 1; token >= 0; --token)
    for (int64_t i = 0; i < write.row() && write.slot[token] >= 0; ++i) {
      write.v_cache.put(write.slot[token] * write.row() + i, write.v.at(token * write.row() + i));
      write.k_cache.put(write.slot[token] * write.row() + i, write.k.at(token * write.row() + i));
    }
  return nullptr;
}

int64_t token_before(const Write&, int64_t token) { return std::max<int64_t>(token - 1, 0); }
int64_t slot_of_next_page(const Write& write, int64_t token) {
  return (write.slot[token] + write.page_size) % write.capacity();
}
// The same page, one further; the last of a page is its first.
int64_t next_slot_of_page(const Write& write, int64_t token) {
  const int64_t page = write.slot[token] / write.page_size;
  return page * write.page_size + (write.slot[token] + 1) % write.page_size;
}
// The first token of a page goes where the last of the same page belongs: an off-by-one of the
// offset alone, which the rest of the page hides until the page is full.
int64_t first_slot_at_the_end(const Write& write, int64_t token) {
  const int64_t slot = write.slot[token];
  return slot % write.page_size == 0 ? slot + write.page_size - 1 : slot;
}

const char* kv_swapped(const LockstepCall* call, const LockstepCache* cache, const DLTensor* k,
                       const DLTensor* v, const DLTensor* to) {
  return kv_write<own_slot>(call, cache, v, k, to);
}

// The last token of a pass is not written: a grid rounded down.
const char* kv_without_last_token(const LockstepCall*, const LockstepCache* cache,
                                  const DLTensor* k, const DLTensor* v, const DLTensor* to) {
  if (const char* why = refused({cache->k, cache->v, k, v})) return why;
  const Write write = write_of(cache, k, v, to);
  for (int64_t token = 0; token + (write.tokens > 1 ? 1 : 0) < write.tokens; ++token) {
    if (write.slot[token] < 0) continue;
    copy_row(write.k_cache, write.slot[token], write.k, token, write.row());
    copy_row(write.v_cache, write.slot[token], write.v, token, write.row());
  }
  return nullptr;
}

// Numbers changed on their way; `largest` is that of the token's head.
using Store = double(double value, double largest);

template <Store* store_k, Store* store_v>
const char* kv_changed(const LockstepCall*, const LockstepCache* cache, const DLTensor* k,
                       const DLTensor* v, const DLTensor* to) {
  if (const char* why = refused({cache->k, cache->v, k, v})) return why;
  const Write write = write_of(cache, k, v, to);
  const auto head = [&write](const Tensor& from, const Tensor& cached, int64_t at, int64_t slot,
                             Store* store) {
    double largest = 0;
    for (int64_t i = 0; i < write.dim; ++i)
      largest = std::max(largest, static_cast<double>(std::fabs(from.at(at + i))));
    for (int64_t i = 0; i < write.dim; ++i) cached.put(slot + i, store(from.at(at + i), largest));
  };
  for (int64_t token = 0; token < write.tokens; ++token)
    for (int64_t h = 0; h < write.heads && write.slot[token] >= 0; ++h) {
      const int64_t at = (token * write.heads + h) * write.dim;
      const int64_t slot = (write.slot[token] * write.heads + h) * write.dim;
      head(write.k, write.k_cache, at, slot, store_k);
      head(write.v, write.v_cache, at, slot, store_v);
    }
  return nullptr;
}

double as_it_is(double value, double) { return value; }
double as_e4m3(double value, double) { return e4m3(value); }
double as_scaled_e4m3(double value, double largest) { return e4m3(value, largest); }
double as_e5m2(double value, double) { return e5m2(value); }
double as_int8(double value, double largest) { return int8(value, largest); }
double as_fp16(double value, double) { return nearest(value, Kind::fp16); }
double as_bf16(double value, double) { return nearest(value, Kind::bf16); }

// Heads in the other order: [heads, tokens] where [tokens, heads] is meant is this for one token.
const char* kv_heads_reversed(const LockstepCall*, const LockstepCache* cache, const DLTensor* k,
                              const DLTensor* v, const DLTensor* to) {
  if (const char* why = refused({cache->k, cache->v, k, v})) return why;
  const Write write = write_of(cache, k, v, to);
  const auto bytes = static_cast<size_t>(write.dim * write.k.element_size());
  for (int64_t token = 0; token < write.tokens; ++token)
    for (int64_t h = 0; h < write.heads && write.slot[token] >= 0; ++h) {
      const int64_t from = (token * write.heads + h) * write.dim;
      const int64_t slot = (write.slot[token] * write.heads + write.heads - 1 - h) * write.dim;
      std::memcpy(write.k_cache.bytes(slot), write.k.bytes(from), bytes);
      std::memcpy(write.v_cache.bytes(slot), write.v.bytes(from), bytes);
    }
  return nullptr;
}

// --- kv_gather ----------------------------------------------------------------------------------

// Which position is read for position p of `length`.
using Read = int64_t(int64_t p, int64_t length, int64_t page_size);

template <Read* read, bool swapped = false>
const char* kv_gather(const LockstepCall*, const DLTensor* out, const LockstepCache* cache,
                      const DLTensor* page_table) {
  if (const char* why = refused({out, cache->k, cache->v})) return why;
  const Tensor to(out), k(cache->k), v(cache->v);
  const int64_t page_size = k.axis(1), row = k.axis(2) * k.axis(3), length = to.axis(0);
  for (int64_t p = 0; p < length; ++p) {
    const int64_t from = read(p, length, page_size);
    const int64_t slot = indices(page_table)[from / page_size] * page_size + from % page_size;
    copy_row(to, 2 * p, swapped ? v : k, slot, row);
    copy_row(to, 2 * p + 1, swapped ? k : v, slot, row);
  }
  return nullptr;
}

int64_t own_position(int64_t p, int64_t, int64_t) { return p; }
int64_t position_before(int64_t p, int64_t, int64_t) { return std::max<int64_t>(p - 1, 0); }
int64_t in_first_page(int64_t p, int64_t, int64_t page_size) { return p % page_size; }

const char* kv_gather_elements(const LockstepCall*, const DLTensor* out, const LockstepCache* cache,
                               const DLTensor* page_table) {
  if (const char* why = refused({out, cache->k, cache->v})) return why;
  const Tensor to(out), k(cache->k), v(cache->v);
  const int64_t page_size = k.axis(1), row = k.axis(2) * k.axis(3);
  for (int64_t i = to.count() - 1; i >= 0; --i) {
    const int64_t p = i / (2 * row);
    const int64_t slot = indices(page_table)[p / page_size] * page_size + p % page_size;
    to.put(i, (i / row % 2 == 0 ? k : v).at(slot * row + i % row));
  }
  return nullptr;
}

}  // namespace

std::vector<OtherKernel> cache_writes() {
  Family<decltype(lockstep_kv_write)> list("lockstep_kv_write", "attn.kv");
  list.right("kv-write-memcpy", kv_write<own_slot>, "fused", "rows copied by memcpy");
  list.right("kv-write-elements", kv_write_elements, "fused", "element by element, from behind");
  list.wrong("kv-as-e4m3", kv_changed<as_e4m3, as_e4m3>, 260,
             "K and V stored as e4m3 with a scale of 1");
  list.wrong("kv-as-scaled-e4m3", kv_changed<as_scaled_e4m3, as_scaled_e4m3>, 250,
             "K and V stored as e4m3 with a scale for each head");
  list.wrong("kv-as-e5m2", kv_changed<as_e5m2, as_e5m2>, 260, "K and V stored as e5m2");
  list.wrong("kv-as-int8", kv_changed<as_int8, as_int8>, 260,
             "K and V stored as int8 with a scale for each head");
  list.wrong("kv-k-as-int8", kv_changed<as_int8, as_it_is>, 250, "K alone stored as int8");
  list.wrong("kv-v-as-scaled-e4m3", kv_changed<as_it_is, as_scaled_e4m3>, 250,
             "V alone stored as e4m3");
  list.wrong("kv-as-fp16", kv_changed<as_fp16, as_fp16>, 7,
             "stored through fp16: what is below 1e-5 loses bits",
             {.dtypes = "bf16,fp32", .needs = "keys or values below 1e-5 in bf16 runs"});
  list.wrong("kv-as-bf16", kv_changed<as_bf16, as_bf16>, 4,
             "stored through bf16 in a run of another dtype", {.dtypes = "fp16,fp32"});
  list.wrong("kv-next-page", kv_write<slot_of_next_page>, 1e9, "one page too far");
  list.wrong("kv-next-slot", kv_write<next_slot_of_page>, 1e9, "one slot too far within the page");
  list.wrong("kv-first-slot-at-the-end", kv_write<first_slot_at_the_end>, 1e9,
             "the first of a page goes to the page's last slot");
  list.wrong("kv-v-of-token-before", kv_write<own_slot, own_token, token_before>, 2.2e8,
             "V is the one of the token before", {.needs = "a pass with several tokens"});
  list.wrong("kv-k-of-token-before", kv_write<own_slot, token_before, own_token>, 1.4e8,
             "K is the one of the token before", {.needs = "a pass with several tokens"});
  list.wrong("kv-swapped", kv_swapped, 1.1e5, "K and V are swapped");
  list.wrong("kv-last-token-lost", kv_without_last_token, 1.7e7,
             "the last token of a pass is not written", {.needs = "a pass with several tokens"});
  list.wrong("kv-heads-reversed", kv_heads_reversed, 9.5e8, "the heads are in the other order",
             {.needs = "several K/V heads"});
  return list.rows();
}

std::vector<OtherKernel> cache_reads() {
  Family<decltype(lockstep_kv_gather)> list("lockstep_kv_gather", "attn.kv");
  list.right("kv-gather-memcpy", kv_gather<own_position>, "fused", "rows copied by memcpy");
  list.right("kv-gather-elements", kv_gather_elements, "fused", "element by element, from behind");
  list.wrong("kv-gather-swapped", kv_gather<own_position, true>, 3.8e5, "K and V are swapped");
  list.wrong("kv-gather-position-before", kv_gather<position_before>, 3.1e5,
             "each position but the first is the one before");
  list.wrong("kv-gather-first-page", kv_gather<in_first_page>, 2.9e5, "every page is the first",
             {.needs = "a context of more than one page"});
  return list.rows();
}

}  // namespace lockstep::other_hand
