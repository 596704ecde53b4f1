// The scores of a query against all keys that `visible` leaves come first; then `mix` makes the row
// of them and of the values. A fault replaces one of the two. Keys are offered to `visible` up to
// the end of the last page, because a fault may read past the context.
#include "src/faults/attend.h"

namespace lockstep {
namespace {

// The arguments of one call of paged_attention.
struct AttentionCall {
  TensorView out, q;
  KvCache cache;
  AttentionBatch batch;
  float scale;
  int64_t window;
};

// Row t, a query of one request.
void attend(const AttentionCall& call, int64_t request, int64_t t, const Visible& visible,
            const Mix& mix) {
  const int64_t heads = call.q.shape[1], dim = call.q.shape[2], kv_heads = call.cache.k.shape[2];
  const int64_t page_size = call.cache.page_size();
  const auto* starts = call.batch.query_start.as<int32_t>();
  const int64_t length = call.batch.context_length.as<int32_t>()[request];
  const Query query{.position = length - (starts[request + 1] - t),
                    .length = length,
                    .first = length - (starts[request + 1] - starts[request])};
  const auto* table =
      call.batch.page_table.as<int32_t>() + request * call.batch.page_table.row_size();
  std::vector<ScoredKey> keys;
  for (int64_t key = 0; key < (length + page_size - 1) / page_size * page_size; ++key)
    if (visible(key, query) && (call.window == 0 || key > query.position - call.window))
      keys.push_back({.key = key});
  std::vector<float> y(dim);
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t kv = h / (heads / kv_heads);
    const auto row_of = [&](int64_t key) {
      const int64_t slot = table[key / page_size] * page_size + key % page_size;
      return (slot * kv_heads + kv) * dim;
    };
    for (auto& [key, score] : keys) {
      score = 0;
      for (int64_t d = 0; d < dim; ++d)
        score += get(call.q, (t * heads + h) * dim + d) * get(call.cache.k, row_of(key) + d);
      score *= call.scale;
    }
    const auto value = [&](size_t i) {
      std::vector<float> v;
      for (int64_t d = 0; d < dim; ++d) v.push_back(get(call.cache.v, row_of(keys[i].key) + d));
      return v;
    };
    mix(query, keys, value, y);
    for (int64_t d = 0; d < dim; ++d) put(call.out, (t * heads + h) * dim + d, y[d]);
  }
}

}  // namespace

void seed_attention(const Seams& seams, const FaultRequest& request, Visible visible, Mix mix) {
  inject(seams, &Ops::paged_attention, request,
         [visible = std::move(visible), mix = std::move(mix)](
             const auto&, const OpContext&, TensorView out, TensorView q, KvCache cache,
             AttentionBatch batch, float scale, int64_t window) {
           const auto* starts = batch.query_start.as<int32_t>();
           for (int64_t r = 0; r < batch.context_length.count(); ++r)
             for (int64_t t = starts[r]; t < starts[r + 1]; ++t)
               attend({out, q, cache, batch, scale, window}, r, t, visible, mix);
         });
}

}  // namespace lockstep
