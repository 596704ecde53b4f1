#pragma once

#include "src/model/model.h"

namespace lockstep {

// Shows at attn.kv what the attention of a layer reads: one tensor a request, through its page
// table. Nobody writes a layer's cache after its attention, so the end of a pass is early enough.
// A sink on the device gets an empty tensor: how long the requests are is not known to a graph.
void show_cache(const Model& model, const Batch& batch, const KvCache& cache, int layer,
                Probe& probe);

}  // namespace lockstep
