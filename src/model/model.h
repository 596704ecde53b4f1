// A model is the meaning of a checkpoint's weights and the order of its ops. The room has three
// levels, each of which can be read alone:
//
//     families.cc       which architectures there are, and who computes them
//     qwen.cc           the layers as the paper draws them, in verbs of a LayerExecutor
//     *_executor.cc     the verbs as ops, one probe an output: PieceExecutor, FusedExecutor
//
// Every op is called through the table of ops that the model was given: a user's kernel, a seeded
// fault and a watch are other tables, and no line of the model knows. Shapes: activations are
// [tokens, ...] of all requests of the pass after each other, in the dtype of the run.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/ops.h"
#include "probes/graph.h"
#include "probes/probe.h"
#include "src/model/activations.h"
#include "src/model/batch.h"
#include "src/model/weights.h"

namespace lockstep {

class LayerExecutor;
struct PassParts;

// Where a model's ops run, and by whom.
struct Placement {
  ThreadPool* threads = nullptr;  // borrowed
  // Borrowed; null on the CPU.
  CUstream_st* stream = nullptr;
  Device device = Device::cpu;
  // Makes the executors of passes in the place of the model's own (layer_executor.h); empty: none.
  std::function<std::unique_ptr<LayerExecutor>(const PassParts&)> make_executor = {};
  bool over_ranks = false;  // they show the points of a model over ranks
  bool in_shares = false;   // they show the shares that attention is merged of
};

// The result of one forward pass, valid until the next one.
struct Forward {
  TensorView logits;  // [logit rows, vocab], in the run's dtype
  TensorView tokens;  // [logit rows]  int32: the argmax of each row
};

// A model that can be run, owned by the engine: its weights by meaning, its buffers, and the code
// of its family. One pass at a time: forward() uses the model's own buffers, unless it is given
// others. It is not const for that alone.
class Model {
 public:
  // Throws Error when no family in families.cc is of the checkpoint's architecture. The checkpoint
  // must outlive the model.
  Model(const Checkpoint& checkpoint, DType dtype, Ops ops, Placement placement);

  const ModelConfig& config() const { return config_; }
  DType dtype() const { return dtype_; }
  Device device() const { return placement_.device; }
  Graph graph() const;

  // An empty cache of one layer. `storage` owns it, and must outlive it; its numbers are not set.
  KvCache make_cache(int64_t pages, int64_t page_size, std::vector<Tensor>& storage) const;

  // Computes the batch's tokens: writes their K and V into `caches` (one a layer) and shows every
  // point to the probe. Throws what ops throw; the pass is then half written, in the caches too.
  Forward forward(const Batch& batch, const std::vector<KvCache>& caches, Probe& probe);
  // The same in other buffers than the model's own; valid as long as nobody else uses those.
  Forward forward(const Batch& batch, const std::vector<KvCache>& caches, Probe& probe,
                  Activations& activations) const;

  // For the families.
  const Ops& ops() const { return ops_; }
  const Placement& placement() const { return placement_; }
  const FusedOps& fused() const { return fused_; }  // of those ops
  const Weights& weights() const { return weights_; }
  OpContext context(const Point& output, int layer = -1) const {
    return {placement_.threads, placement_.stream, layer, output.name};
  }

 private:
  const ModelConfig& config_;
  DType dtype_;
  Ops ops_;
  FusedOps fused_;
  Placement placement_;
  Weights weights_;
  Activations activations_;
  Forward (*family_)(const Model&, const Batch&, const std::vector<KvCache>&, Activations&, Probe&);
};

Graph graph_of(const ModelConfig& config);

}  // namespace lockstep
