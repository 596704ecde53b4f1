#include "src/model/show_cache.h"

namespace lockstep {

void show_cache(const Model& model, const Batch& batch, const KvCache& cache, int layer,
                Probe& probe) {
  const Point& kv = point("attn.kv");
  if (!probe.wants(kv, layer)) return;
  if (probe.on_device()) return probe(kv, layer, {}, {});  // a place to show it, by whoever replays
  // The lengths are those that the attention is given, which is not always what the pages hold.
  const Tensor lengths = copy_on(Device::cpu, batch.context_length);
  for (size_t r = 0; r < batch.info.pages.size(); ++r) {
    const int32_t length = lengths.as<int32_t>()[r];
    Tensor seen({length, 2, cache.k.shape[2], cache.k.shape[3]}, cache.k.dtype, cache.k.device);
    const TensorView table = batch.page_table.view().slice(r, 1);
    model.ops().kv_gather(model.context(kv, layer), seen, cache, table.reshaped({table.count()}));
    std::vector<Row> rows;
    for (int32_t p = 0; p < length; ++p) rows.push_back({batch.info.pages[r].request, p});
    probe(kv, layer, rows, seen);
  }
}

}  // namespace lockstep
