#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/check.h"
#include "src/faults/seeds.h"

namespace lockstep {
namespace {

// Which keys a query at `position` attends; slots up to the end of the last page can be asked for.
using Visible = std::function<bool(int64_t key, int64_t position, int64_t length)>;

struct AttentionCall {
  TensorView out, q;
  KvCache cache;
  AttentionBatch batch;
  float scale;
  int64_t window;
};

// One query of one request, in plain fp32 and two passes over the keys.
void attend(const AttentionCall& call, int64_t request, int64_t t, const Visible& visible) {
  const int64_t heads = call.q.shape[1], dim = call.q.shape[2], kv_heads = call.cache.k.shape[2];
  const int64_t page_size = call.cache.page_size();
  const auto* starts = call.batch.query_start.as<int32_t>();
  const int64_t length = call.batch.context_length.as<int32_t>()[request];
  const int64_t position = length - (starts[request + 1] - t);
  const auto* table =
      call.batch.page_table.as<int32_t>() + request * call.batch.page_table.row_size();
  const auto slot = [&](int64_t key) {
    return table[key / page_size] * page_size + key % page_size;
  };
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < (length + page_size - 1) / page_size * page_size; ++key)
    if (visible(key, position, length) && (call.window == 0 || key > position - call.window))
      keys.push_back(key);
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t kv = h / (heads / kv_heads);
    const auto element = [&](int64_t key, int64_t d) {
      return (slot(key) * kv_heads + kv) * dim + d;
    };
    std::vector<float> p(keys.size(), 0);
    for (size_t i = 0; i < keys.size(); ++i)
      for (int64_t d = 0; d < dim; ++d)
        p[i] += get(call.q, (t * heads + h) * dim + d) * get(call.cache.k, element(keys[i], d));
    float top = -std::numeric_limits<float>::infinity(), sum = 0;
    for (float score : p) top = std::max(top, score);
    for (float& score : p) sum += score = std::exp((score - top) * call.scale);
    for (int64_t d = 0; d < dim; ++d) {
      float value = 0;
      for (size_t i = 0; i < keys.size(); ++i)
        value += p[i] * get(call.cache.v, element(keys[i], d));
      put(call.out, (t * heads + h) * dim + d, value / sum);
    }
  }
}

void seed_mask(const Seams& seams, const FaultRequest& request, Visible visible) {
  seams.ops.paged_attention = [inner = seams.ops.paged_attention, request, visible](
                                  const OpContext& context, TensorView out, TensorView q,
                                  KvCache cache, AttentionBatch batch, float scale,
                                  int64_t window) {
    if (!hits(request, context)) return inner(context, out, q, cache, batch, scale, window);
    const auto* starts = batch.query_start.as<int32_t>();
    for (int64_t r = 0; r < batch.context_length.count(); ++r)
      for (int64_t t = starts[r]; t < starts[r + 1]; ++t)
        attend({out, q, cache, batch, scale, window}, r, t, visible);
  };
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

}  // namespace

void seed_causal_mask_off_by_one(const Seams& seams, const FaultRequest& request) {
  seed_mask(seams, request, [](int64_t key, int64_t position, int64_t length) {
    return key <= position + 1 && key < length;
  });
}

void seed_last_page_tail_unmasked(const Seams& seams, const FaultRequest& request) {
  seed_mask(seams, request, [](int64_t key, int64_t position, int64_t length) {
    return key <= position || key >= length;
  });
}

void seed_softmax_scale_missing(const Seams& seams, const FaultRequest& request) {
  seams.ops.paged_attention = [inner = seams.ops.paged_attention, request](
                                  const OpContext& context, TensorView out, TensorView q,
                                  KvCache cache, AttentionBatch batch, float scale,
                                  int64_t window) {
    inner(context, out, q, cache, batch, hits(request, context) ? 1.0f : scale, window);
  };
}

void seed_gqa_map_modulo(const Seams& seams, const FaultRequest& request) {
  seams.ops.paged_attention = [inner = seams.ops.paged_attention, request](
                                  const OpContext& context, TensorView out, TensorView q,
                                  KvCache cache, AttentionBatch batch, float scale,
                                  int64_t window) {
    if (!hits(request, context)) return inner(context, out, q, cache, batch, scale, window);
    // Head h moves to a place that the right map sends to K/V head h % kv_heads, and back.
    const int64_t kv_heads = cache.k.shape[2], group = q.shape[1] / kv_heads;
    Tensor moved(q.shape, q.dtype), result(q.shape, q.dtype);
    permute_heads(moved, q, [&](int64_t h) { return h % group * kv_heads + h / group; });
    inner(context, result, moved, cache, batch, scale, window);
    permute_heads(out, result, [&](int64_t h) { return h % kv_heads * group + h / kv_heads; });
  };
}

void seed_sliding_window_off_by_one(const Seams& seams, const FaultRequest& request) {
  const auto& windows = seams.config.window;
  const auto by = static_cast<int64_t>(request.size);
  check(request.size == 1 || request.size == -1,
        "fault {} has the size 1 (a key more) or -1 (a key less), found {}", request.name,
        request.size);
  check(request.layer < 0 || windows[static_cast<size_t>(request.layer)] > 0,
        "fault {} needs a layer with a sliding window, which layer {} has not", request.name,
        request.layer);
  // 0 would not be a window of no key, but none at all.
  check(std::ranges::count(windows, -by) == 0, "fault {} needs windows of more than one key",
        request.name);
  seams.ops.paged_attention = [inner = seams.ops.paged_attention, request, by](
                                  const OpContext& context, TensorView out, TensorView q,
                                  KvCache cache, AttentionBatch batch, float scale,
                                  int64_t window) {
    const bool hit = hits(request, context) && window > 0;
    inner(context, out, q, cache, batch, scale, hit ? window + by : window);
  };
}

void seed_chunk_lengths_of_another_row(const Seams& seams, const FaultRequest& request) {
  seams.ops.paged_attention = [inner = seams.ops.paged_attention, request](
                                  const OpContext& context, TensorView out, TensorView q,
                                  KvCache cache, AttentionBatch batch, float scale,
                                  int64_t window) {
    if (!hits(request, context)) return inner(context, out, q, cache, batch, scale, window);
    const Tensor wrong = copy_of(batch.context_length);
    const auto* right = batch.context_length.as<const int32_t>();
    for (int64_t r = 1; r < wrong.view().count(); ++r) {
      // As far as the row's own pages go: past them is memory that is not the cache.
      const auto* pages = batch.page_table.as<const int32_t>() + r * batch.page_table.row_size();
      const auto held = std::find(pages, pages + batch.page_table.row_size(), -1) - pages;
      const int64_t most = held * cache.page_size();
      wrong.as<int32_t>()[r] = static_cast<int32_t>(std::min<int64_t>(right[r - 1], most));
    }
    batch.context_length = wrong;
    inner(context, out, q, cache, batch, scale, window);
  };
}

}  // namespace lockstep
