#pragma once

#include <functional>
#include <memory>

#include "src/model/model.h"

namespace lockstep {

// A point by name; one that is not in the table does not compile.
struct PointName {
  consteval PointName(const char* name) : point(lockstep::point(name)) {}
  const Point& point;
};

// [tokens, heads, dim] as [tokens, heads * dim].
inline TensorView flat(const TensorView& heads) {
  return heads.reshaped({heads.rows(), heads.row_size()});
}

// One pass through the layers of a model, in verbs of the size of the paper's figure. A family
// calls them in its order; who computes them, and in how many kernels, is the executor's own
// business. All executors show the same points with the same bits. Everything is borrowed for the
// pass; the thread is the engine's.
//
//   embed, norm | qkv, qk_norm_rope_kv_write, attend, project, add_norm |
//               | gate_up_silu, down  or  experts,             add_norm | x layers | head
class LayerExecutor {
 public:
  virtual ~LayerExecutor() = default;

  virtual void embed(const TensorView& table) = 0;
  virtual void norm(int layer, const TensorView& weight) = 0;  // of the stream, for attention

  virtual void qkv(const LayerWeights& w) = 0;
  virtual void qk_norm_rope_kv_write(const LayerWeights& w, const KvCache& cache) = 0;
  virtual void attend(const KvCache& cache) = 0;
  virtual void project(const LayerWeights& w) = 0;

  virtual void gate_up_silu(const LayerWeights& w) = 0;
  virtual void down(const LayerWeights& w) = 0;
  virtual void experts(const LayerWeights& w) = 0;

  // The end of a branch, which is added to the stream, and the norm that the next one begins with;
  // from here on the executor is in `norm_layer` (-1: after all layers).
  virtual void add_norm(PointName residual, PointName norm, int norm_layer,
                        const TensorView& weight) = 0;

  virtual Forward head(const WeightView& lm_head) = 0;
};

// The parts of one pass, borrowed: model, arguments, buffers, probe.
struct PassParts {
  const Model& model;
  const Batch& batch;
  Activations& activations;
  Probe& probe;
};

// Who makes executors in the place of those below.
using MakeExecutor = std::function<std::unique_ptr<LayerExecutor>(const PassParts&)>;

// Makes the executor that the model was told of; otherwise one with fused ops, as far as its table
// has them whole, and one op at a time where the probe may change what it is shown.
std::unique_ptr<LayerExecutor> make_executor(const PassParts& pass);
// The second of these.
std::unique_ptr<LayerExecutor> make_own_executor(const PassParts& pass);

}  // namespace lockstep
