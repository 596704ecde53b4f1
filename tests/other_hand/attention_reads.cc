// Attentions that compute rightly and look at something else: keys, pages, heads, queries, or K and
// V of fewer bits than the cache has.
#include <algorithm>
#include <cmath>

#include "tests/other_hand/attention.h"
#include "tests/other_hand/families.h"

namespace lockstep::other_hand {
namespace {

void attend(const Query& query, double* out) {
  divide(walk(query, Style{.block = 32}, 0, query.keys), out);
}

int64_t begin_of(const Seat& seat) { return sees_causally(seat).begin; }

// --- Masks --------------------------------------------------------------------------------------

Keys sees_one_further(const Seat& seat) {
  return {begin_of(seat), std::min(seat.position + 2, seat.context)};
}

Keys sees_not_itself(const Seat& seat) {
  return {std::min(begin_of(seat), std::max<int64_t>(seat.position - 1, 0)),
          std::max<int64_t>(seat.position, 1)};
}

Keys sees_all(const Seat& seat) { return {begin_of(seat), seat.context}; }

// The mask's corner is that of the chunk and not that of the context: NVIDIA/cutlass#2336, and what
// FlashAttention did before 2.1. Decode has no mask and is right.
Keys sees_from_top_left(const Seat& seat) {
  const int64_t end = seat.queries == 1 ? seat.position + 1 : seat.token - seat.first + 1;
  return {std::min(begin_of(seat), end - 1), end};
}

// Only whole tiles are masked.
Keys sees_whole_tiles(const Seat& seat) {
  return {begin_of(seat), std::min((seat.position / 16 + 1) * 16, seat.context)};
}

// Decode walks whole pages: what lies behind the last key is what was there before.
Keys sees_last_page(const Seat& seat) {
  if (seat.queries > 1) return sees_causally(seat);
  return {begin_of(seat), (seat.context + seat.page_size - 1) / seat.page_size * seat.page_size};
}

// The bound was computed before the new key was counted; short contexts take another kernel.
Keys sees_one_less(const Seat& seat) {
  return {begin_of(seat), seat.position + (seat.position + 1 > 64 ? 0 : 1)};
}

Keys sees_not_the_first(const Seat& seat) {
  return {std::max<int64_t>(begin_of(seat), seat.position + 1 > 64 ? 1 : 0), seat.position + 1};
}

Keys sees_not_the_first_page(const Seat& seat) {
  const bool is_long = seat.position >= 2 * seat.page_size;
  return {std::max(begin_of(seat), is_long ? seat.page_size : 0), seat.position + 1};
}

// FlashInfer is told how many keys the last page has; n % page_size says none of a full one.
Keys sees_no_full_last_page(const Seat& seat) {
  const bool is_full = seat.queries == 1 && seat.context % seat.page_size == 0;
  const int64_t end = seat.position + 1 - (is_full ? seat.page_size : 0);
  return {std::min(begin_of(seat), std::max<int64_t>(end - 1, 0)), std::max<int64_t>(end, 1)};
}

// A prefill kernel that reads the K and V of its own pass alone, when a prefix was cached
// (Wenyueh/MinivLLM#98).
Keys sees_own_pass(const Seat& seat) {
  const int64_t begin = seat.queries > 1 ? seat.context - seat.queries : 0;
  return {std::max(begin, begin_of(seat)), seat.position + 1};
}

Keys sees_context_of_request_before(const Seat& seat) {
  const int64_t end = seat.queries > 1 ? seat.position + 1 : seat.context_before;
  return {std::min(begin_of(seat), end - 1), end};
}

// window_size_left does not count the query itself (huggingface/transformers#39408).
Keys sees_wider_window(const Seat& seat) {
  return {seat.window > 0 ? seat.position - seat.window : 0, seat.position + 1};
}
Keys sees_narrower_window(const Seat& seat) {
  return {seat.window > 1 ? seat.position - seat.window + 2 : 0, seat.position + 1};
}
Keys sees_no_window(const Seat& seat) { return {0, seat.position + 1}; }
Keys sees_window_of_pages(const Seat& seat) {
  return {begin_of(seat) / seat.page_size * seat.page_size, seat.position + 1};
}

// --- Pages --------------------------------------------------------------------------------------

// The second page is that of the next request, where it has one.
int64_t page_of_neighbour(const Pages& pages, int64_t request, int64_t index) {
  const int64_t next = (request + 1) % pages.requests;
  return pages.own(index == 1 && pages.used(next) > 1 ? next : request, index);
}

// An entry of the table that was not written again.
int64_t page_before(const Pages& pages, int64_t request, int64_t index) {
  const bool is_last = index + 1 == pages.used(request) && index > 0;
  return pages.own(request, is_last ? index - 1 : index);
}

// Two entries are swapped, as when blocks are moved and the table is not.
int64_t pages_swapped(const Pages& pages, int64_t request, int64_t index) {
  const bool can = pages.used(request) > 1;
  return pages.own(request, can && index < 2 ? 1 - index : index);
}

// The cache taken as if it were contiguous from the first page on (tanishqkumar/ssd#23). The page
// must be one of the request's table, so that it wraps within those.
int64_t pages_in_order_of_number(const Pages& pages, int64_t request, int64_t index) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < pages.used(request); ++i) all.push_back(pages.own(request, i));
  std::sort(all.begin(), all.end());
  return all[static_cast<size_t>(index)];
}

// --- Heads and queries --------------------------------------------------------------------------

// ggml-org/llama.cpp#25315: modulo where a division is meant.
int64_t heads_modulo(int64_t head, int64_t, int64_t kv_heads) { return head % kv_heads; }
int64_t first_head(int64_t, int64_t, int64_t) { return 0; }
// A group of the size of the number of K/V heads (PSAL-POSTECH/ONNXim#33).
int64_t heads_by_count(int64_t head, int64_t, int64_t kv_heads) {
  return std::min(head / kv_heads, kv_heads - 1);
}
// The group of the next K/V head begins one head too early.
int64_t heads_one_early(int64_t head, int64_t heads, int64_t kv_heads) {
  return std::min((head + 1) / (heads / kv_heads), kv_heads - 1);
}

int64_t query_before(const Seat& seat) { return std::max(seat.token - 1, seat.first); }

// --- Fewer bits ---------------------------------------------------------------------------------

double largest_of(const std::vector<float>& values) {
  double largest = 0;
  for (const float value : values) {
    const double size = std::fabs(value);
    if (std::isfinite(size)) largest = std::max(largest, size);
  }
  return largest;
}

void read_as_e4m3(std::vector<float>& values) {
  for (float& value : values) value = static_cast<float>(e4m3(value));
}
void read_as_scaled_e4m3(std::vector<float>& values) {
  const double largest = largest_of(values);
  for (float& value : values) value = static_cast<float>(e4m3(value, largest));
}
void read_as_int8(std::vector<float>& values) {
  const double largest = largest_of(values);
  for (float& value : values) value = static_cast<float>(int8(value, largest));
}
void read_as_bf16(std::vector<float>& values) {
  for (float& value : values) value = rounded(value, Kind::bf16);
}

using Attention = Family<decltype(lockstep_paged_attention)>;

template <Sees* sees>
const char* seeing(const LockstepCall*, const DLTensor* out, const DLTensor* q,
                   const LockstepCache* cache, const LockstepBatch* batch, float scale,
                   int64_t window) {
  return run_attention({.attend = attend, .sees = sees}, out, q, cache, batch, scale, window);
}

template <PageOf* page>
const char* paging(const LockstepCall*, const DLTensor* out, const DLTensor* q,
                   const LockstepCache* cache, const LockstepBatch* batch, float scale,
                   int64_t window) {
  return run_attention({.attend = attend, .page = page}, out, q, cache, batch, scale, window);
}

template <HeadMap* map>
const char* mapping(const LockstepCall*, const DLTensor* out, const DLTensor* q,
                    const LockstepCache* cache, const LockstepBatch* batch, float scale,
                    int64_t window) {
  return run_attention({.attend = attend, .kv_head = map}, out, q, cache, batch, scale, window);
}

void add_masks(Attention& list) {
  const Shows chunk = {.needs = "a pass with several queries of a request"};
  const Shows window = {.needs = "a sliding window"};
  const Shows over_64 = {.needs = "a context over 64 keys"};
  list.wrong("attention-sees-one-further", seeing<sees_one_further>, 3900,
             "each query sees the key after its own", chunk);
  list.wrong("attention-sees-not-itself", seeing<sees_not_itself>, 3000,
             "a query does not see its own key");
  list.wrong("attention-sees-all", seeing<sees_all>, 2800, "no causal mask", chunk);
  list.wrong("attention-mask-from-top-left", seeing<sees_from_top_left>, 12000,
             "the causal mask begins at the first key of the context",
             {.needs = "a pass with several queries over a longer cache"});
  list.wrong("attention-masks-whole-tiles", seeing<sees_whole_tiles>, 3500,
             "a query sees all of its tile of 16 keys", chunk);
  list.wrong("attention-page-tail-unmasked", seeing<sees_last_page>, 840,
             "decode sees what lies behind the last key of a page",
             {.needs = "a decode pass whose last page is not full"});
  list.wrong("attention-one-key-short", seeing<sees_one_less>, 400,
             "over 64 keys, the newest is not seen", over_64);
  list.wrong("attention-first-key-lost", seeing<sees_not_the_first>, 140,
             "over 64 keys, the oldest is not seen", over_64);
  list.wrong("attention-first-page-lost", seeing<sees_not_the_first_page>, 3500,
             "from the third page on, the first is not seen",
             {.needs = "a context of more than two pages"});
  list.wrong("attention-full-page-lost", seeing<sees_no_full_last_page>, 98,
             "decode does not see a last page that is full",
             {.needs = "a decode pass whose context is a multiple of the page size"});
  list.wrong("attention-prefix-ignored", seeing<sees_own_pass>, 20000,
             "a chunk does not see what was cached before it",
             {.needs = "a pass with several queries over a longer cache"});
  list.wrong("attention-length-of-request-before", seeing<sees_context_of_request_before>, 5000,
             "decode takes the length of the request before",
             {.needs = "a decode pass of several requests"});
  list.wrong("attention-window-one-wider", seeing<sees_wider_window>, 410,
             "a sliding window of one key more", window);
  list.wrong("attention-window-one-narrower", seeing<sees_narrower_window>, 550,
             "a sliding window of one key less", window);
  list.wrong("attention-no-window", seeing<sees_no_window>, 1700, "no sliding window", window);
  list.wrong("attention-window-of-pages", seeing<sees_window_of_pages>, 2200,
             "a sliding window that begins at a page", window);
}

void add_places(Attention& list) {
  const Shows groups = {.needs = "more heads than K/V heads, and more of these than one"};
  list.wrong("attention-page-of-neighbour", paging<page_of_neighbour>, 3200,
             "the second page is the next request's",
             {.needs = "two requests of more than one page"});
  list.wrong("attention-page-repeated", paging<page_before>, 1500,
             "the last page is read as the one before it",
             {.needs = "a context of more than one page"});
  list.wrong("attention-pages-swapped", paging<pages_swapped>, 5900,
             "the first two pages are swapped", {.needs = "a prefill of more than one page"});
  list.wrong("attention-pages-sorted", paging<pages_in_order_of_number>, 5500,
             "pages are read in the order of their numbers",
             {.needs = "pages that were not handed out in order"});
  list.wrong("attention-heads-modulo", mapping<heads_modulo>, 5800,
             "head h reads K/V head h % kv_heads", groups);
  list.wrong("attention-first-kv-head", mapping<first_head>, 8400, "all heads read K/V head 0",
             {.needs = "several K/V heads"});
  list.wrong("attention-heads-by-count", mapping<heads_by_count>, 8400,
             "head h reads K/V head h / kv_heads", groups);
  list.wrong("attention-heads-one-early", mapping<heads_one_early>, 5800,
             "the last head of a group reads the next K/V head", groups);
  list.wrong("attention-query-before",
             attention<[] { return Plan{.attend = attend, .query = query_before}; }>, 5700,
             "each query but the first is the one before",
             {.needs = "a pass with several queries of a request"});
  list.wrong("attention-value-is-key",
             attention<[] { return Plan{.attend = attend, .value_is_key = true}; }>, 7400,
             "K is read for V");
}

void add_bits(Attention& list) {
  list.wrong("attention-k-e4m3",
             attention<[] { return Plan{.attend = attend, .change_k = read_as_e4m3}; }>, 290,
             "K read as e4m3 with a scale of 1");
  list.wrong("attention-k-scaled-e4m3",
             attention<[] { return Plan{.attend = attend, .change_k = read_as_scaled_e4m3}; }>, 350,
             "K read as e4m3 with a scale for each head");
  list.wrong("attention-v-scaled-e4m3",
             attention<[] { return Plan{.attend = attend, .change_v = read_as_scaled_e4m3}; }>, 85,
             "V read as e4m3 with a scale for each head");
  list.wrong("attention-k-int8",
             attention<[] { return Plan{.attend = attend, .change_k = read_as_int8}; }>, 240,
             "K read as int8 with a scale for each head");
  list.wrong("attention-v-int8",
             attention<[] { return Plan{.attend = attend, .change_v = read_as_int8}; }>, 32,
             "V read as int8 with a scale for each head");
  list.wrong("attention-kv-bf16", attention<[] {
               return Plan{.attend = attend, .change_k = read_as_bf16, .change_v = read_as_bf16};
             }>,
             120, "K and V read as bf16 in a run of another dtype", {.dtypes = "fp16,fp32"});
}

}  // namespace

std::vector<OtherKernel> wrong_attention_reads() {
  Attention list("lockstep_paged_attention", "attn.out");
  add_masks(list);
  add_places(list);
  add_bits(list);
  return list.rows();
}

}  // namespace lockstep::other_hand
