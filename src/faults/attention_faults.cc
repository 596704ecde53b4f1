// Bugs of attention's scores, masks and heads. A mask or a softmax that is wrong is a function of
// attend.h; a wrong scale, window or map of heads changes an argument or the result of the op that
// was there.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"
#include "src/faults/attend.h"

namespace lockstep {
namespace {

// Softmax over all the keys, then the mean of V.
void mix_by_softmax(const Query&, std::span<const ScoredKey> keys,
                    const std::function<std::vector<float>(size_t)>& value, std::span<float> y) {
  float top = -std::numeric_limits<float>::infinity(), sum = 0;
  for (const ScoredKey& key : keys) top = std::max(top, key.score);
  std::ranges::fill(y, 0.0f);
  for (size_t i = 0; i < keys.size(); ++i) {
    const float p = std::exp(keys[i].score - top);
    const std::vector<float> v = value(i);
    sum += p;
    for (size_t d = 0; d < y.size(); ++d) y[d] += p * v[d];
  }
  for (float& element : y) element /= sum;
}

// Copies head `from(h)` of every token to head h.
template <typename From>
void permute_heads(const TensorView& to, const TensorView& x, From from) {
  const int64_t heads = x.shape[1], bytes = x.shape[2] * size_of(x.dtype);
  for (int64_t t = 0; t < x.rows(); ++t)
    for (int64_t h = 0; h < heads; ++h)
      std::copy_n(x.as<char>() + (t * heads + from(h)) * bytes, bytes,
                  to.as<char>() + (t * heads + h) * bytes);
}

// The scale of a layer's softmax as `wrong` makes it of the right one.
template <typename Wrong>
void seed_scale(const Seams& seams, const FaultRequest& request, Wrong wrong) {
  inject(seams, &Ops::paged_attention, request,
         [wrong](const auto& inner, const OpContext& context, TensorView out, TensorView q,
                 KvCache cache, AttentionBatch batch, float scale,
                 int64_t window) { inner(context, out, q, cache, batch, wrong(scale), window); });
}

// The attention that the bugs of masks are in.
void seed_attention_right(const Seams& seams, const FaultRequest& request) {
  seed_attention(
      seams, request, [](int64_t key, const Query& q) { return key <= q.position; },
      mix_by_softmax);
}

// A comparison with < for <=, the other way round. The key after the last one of the context is no
// key of the request, and stays hidden.
void seed_causal_mask_off_by_one(const Seams& seams, const FaultRequest& request) {
  seed_attention(
      seams, request,
      [](int64_t key, const Query& q) { return key <= q.position + 1 && key < q.length; },
      mix_by_softmax);
}

// Masks of fewer queries than keys are aligned at the bottom right in FlashAttention since 2.1, and
// at the top left in PyTorch's is_causal: whoever changes one for the other gets this.
void seed_causal_mask_top_left(const Seams& seams, const FaultRequest& request) {
  seed_attention(
      seams, request, [](int64_t key, const Query& q) { return key <= q.position - q.first; },
      mix_by_softmax);
}

// Kernels read whole pages; the slots past the context hold NaN in this engine and old numbers in
// others.
void seed_last_page_tail_unmasked(const Seams& seams, const FaultRequest& request) {
  seed_attention(
      seams, request,
      [](int64_t key, const Query& q) { return key <= q.position || key >= q.length; },
      mix_by_softmax);
}

void seed_softmax_scale_missing(const Seams& seams, const FaultRequest& request) {
  inject(seams, &Ops::paged_attention, request,
         [](const auto& inner, const OpContext& context, TensorView out, TensorView q,
            KvCache cache, AttentionBatch batch, float,
            int64_t window) { inner(context, out, q, cache, batch, 1.0f, window); });
}

void seed_softmax_scale_of_another_head_dim(const Seams& seams, const FaultRequest& request) {
  const auto factor = static_cast<float>(request.size);
  seed_scale(seams, request, [factor](float scale) { return factor * scale; });
}

void seed_softmax_scale_twice(const Seams& seams, const FaultRequest& request) {
  seed_scale(seams, request, [](float scale) { return scale * scale; });
}

// A cache of 8 bits may have a scale a head, and one is read for another: the output is linear in
// V, so that it can be scaled afterwards.
void seed_v_scale_of_another_head(const Seams& seams, const FaultRequest& request) {
  inject(seams, &Ops::paged_attention, request,
         [request](const auto& inner, const OpContext& context, TensorView out, TensorView q,
                   KvCache cache, AttentionBatch batch, float scale, int64_t window) {
           inner(context, out, q, cache, batch, scale, window);
           // The query heads of the last K/V head are the last ones.
           const int64_t row = out.row_size(), own = row / cache.k.shape[2];
           for (int64_t t = 0; t < out.rows(); ++t)
             for (int64_t i = (t + 1) * row - own; i < (t + 1) * row; ++i)
               put(out, i, static_cast<float>(request.size) * get(out, i));
         });
}

void seed_gqa_map_modulo(const Seams& seams, const FaultRequest& request) {
  inject(seams, &Ops::paged_attention, request,
         [](const auto& inner, const OpContext& context, TensorView out, TensorView q,
            KvCache cache, AttentionBatch batch, float scale, int64_t window) {
           // Head h moves to a place that the right map sends to K/V head h % kv_heads, and back.
           const int64_t kv_heads = cache.k.shape[2], group = q.shape[1] / kv_heads;
           Tensor moved(q.shape, q.dtype), result(q.shape, q.dtype);
           permute_heads(moved, q, [&](int64_t h) { return h % group * kv_heads + h / group; });
           inner(context, result, moved, cache, batch, scale, window);
           permute_heads(out, result,
                         [&](int64_t h) { return h % kv_heads * group + h / kv_heads; });
         });
}

void seed_sliding_window_off_by_one(const Seams& seams, const FaultRequest& request) {
  const auto& windows = seams.config.window;
  const auto by = static_cast<int64_t>(request.size);
  check(request.size == 1 || request.size == -1,
        "fault {} has the size 1 (a key more) or -1 (a key less), found {}", request.name,
        request.size);
  check(request.layer < 0 || windows[request.layer] > 0,
        "fault {} needs a layer with a sliding window, which layer {} has not", request.name,
        request.layer);
  // 0 would not be a window of no key, but none at all.
  check(std::ranges::count(windows, -by) == 0, "fault {} needs windows of more than one key",
        request.name);
  inject(seams, &Ops::paged_attention, request,
         [by](const auto& inner, const OpContext& context, TensorView out, TensorView q,
              KvCache cache, AttentionBatch batch, float scale, int64_t window) {
           const bool hit = window > 0;
           inner(context, out, q, cache, batch, scale, hit ? window + by : window);
         });
}

// An index into the lengths that is one too small, as a batch of chunks and decodes is put
// together.
void seed_chunk_lengths_of_another_row(const Seams& seams, const FaultRequest& request) {
  inject(seams, &Ops::paged_attention, request,
         [](const auto& inner, const OpContext& context, TensorView out, TensorView q,
            KvCache cache, AttentionBatch batch, float scale, int64_t window) {
           const Tensor wrong = copy_of(batch.context_length);
           const auto* right = batch.context_length.as<const int32_t>();
           for (int64_t r = 1; r < wrong.view().count(); ++r) {
             // The read goes as far as the row's own pages: past them is memory that is not the
             // cache.
             const auto* pages =
                 batch.page_table.as<const int32_t>() + r * batch.page_table.row_size();
             const auto held = std::find(pages, pages + batch.page_table.row_size(), -1) - pages;
             const int64_t most = held * cache.page_size();
             wrong.as<int32_t>()[r] = static_cast<int32_t>(std::min<int64_t>(right[r - 1], most));
           }
           batch.context_length = wrong;
           inner(context, out, q, cache, batch, scale, window);
         });
}

bool has_groups(const ModelConfig& c) { return c.kv_heads > 1 && c.heads > c.kv_heads; }
bool has_window(const ModelConfig& c) {
  return std::ranges::any_of(c.window, [](int64_t keys) { return keys > 0; });
}

constexpr Fault kAttentionRows[] = {
    {"gqa-map-modulo",
     "attn.out",
     "query head h reads K/V head h % kv_heads instead of h / group",
     "grouped heads and more than one K/V head; two visible keys, or K/V heads that differ",
     {},
     has_groups,
     seed_gqa_map_modulo},
    {"softmax-scale-missing",
     "attn.out",
     "scores are not scaled by head_dim^-0.5",
     "a query that sees two keys",
     {},
     always,
     seed_softmax_scale_missing},
    held_to(seed_attention_right, {"causal-mask-off-by-one",
                                   "attn.out",
                                   "a query also sees the key after its own",
                                   "a pass with two queries of one request",
                                   {},
                                   always,
                                   seed_causal_mask_off_by_one}),
    {"sliding-window-off-by-one",
     "attn.out",
     "a query sees a key more (size 1) or less (size -1) than its sliding window has",
     "a model with a sliding window, and a position past it",
     {1, -1},
     has_window,
     seed_sliding_window_off_by_one},
    {"chunk-lengths-of-another-row",
     "attn.out",
     "a request's context is as long as that of the request before it in the pass",
     "two requests of different lengths in one pass",
     {},
     always,
     seed_chunk_lengths_of_another_row},
    held_to(seed_attention_right, {"last-page-tail-unmasked",
                                   "attn.out",
                                   "the unused slots of a request's last page are attended",
                                   "a length that is no multiple of the page size",
                                   {},
                                   always,
                                   seed_last_page_tail_unmasked}),
    {"softmax-scale-of-another-head-dim",
     "attn.out",
     "scores are scaled by another head_dim^-0.5: size times the right one",
     "a query that sees two keys",
     {2, 0.5, 1.02},
     always,
     seed_softmax_scale_of_another_head_dim},
    {"softmax-scale-twice",
     "attn.out",
     "scores are scaled by head_dim^-0.5 twice",
     "a query that sees two keys",
     {},
     always,
     seed_softmax_scale_twice},
    held_to(seed_attention_right,
            {"causal-mask-top-left",
             "attn.out",
             "the causal mask counts queries from 0 instead of from the pass's first position",
             "a decode pass, or a prompt in chunks",
             {},
             always,
             seed_causal_mask_top_left}),
    {"v-scale-of-another-head",
     "attn.out",
     "V of the last K/V head is read at so many times its size (the fault's size)",
     "any run",
     {2, 1.1, 1.02},
     always,
     seed_v_scale_of_another_head},
};

}  // namespace

constinit const std::span<const Fault> kAttentionFaults = kAttentionRows;

}  // namespace lockstep
