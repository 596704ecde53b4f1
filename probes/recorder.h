#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/base/memory.h"
#include "kernels/base/thread_pool.h"
#include "probes/digest.h"
#include "probes/probe.h"
#include "probes/selection.h"

namespace lockstep {

// A tensor that outlived its model's buffers: what a trace holds and what the judge reads. Copies
// share the memory of `data`.
struct RecordedTensor {
  const Point* point = nullptr;
  int layer = -1;
  std::vector<Row> rows;  // of the outermost axis
  DType dtype = DType::f32;
  Shape shape;
  Digest digest;
  std::vector<uint64_t> row_hashes;
  Tensor data;  // empty view when only the digest was kept
};

// The best of one row of logits: kept always, whatever becomes of the tensor. Values are widened to
// fp64, which changes none of them.
struct TopLogits {
  Row row;
  std::vector<int32_t> ids;    // of the kTopLogits largest (fewer: the vocabulary), largest first;
  std::vector<double> values;  // equal ones by id, NaN last
  int32_t chosen = -1;         // the row of `token`; -1: not seen

  double margin() const;  // values[0] - values[1]; Infinity when there is one
};
inline constexpr int64_t kTopLogits = 8;

// Everything that was seen of one forward pass, in execution order. The unit that the recorder
// makes, the writer writes, the reader reads and the judge judges.
struct Pass {
  PassInfo info;
  std::vector<RecordedTensor> tensors;
  std::vector<TopLogits> logits;  // one a row of the recorded logits

  // The tensor of that place; of attn.kv, which has one per request, that request's. Null: none.
  const RecordedTensor* find(const Point& point, int layer, int32_t request = -1) const;
};

// Fills the pass's `logits` from its tensors of the points logits and token, as far as it has them.
void put_top_logits(Pass& pass);

// Fills `chosen` of rows from a CPU tensor of the point token.
void put_chosen(std::vector<TopLogits>& logits, const TensorView& token, std::span<const Row> rows);

// The largest of every row of a CPU tensor [rows, vocab].
std::vector<TopLogits> top_logits_of(const TensorView& logits, std::span<const Row> rows);

// A sink that copies the wanted rows of every wanted tensor into a Pass and hands each finished one
// on. Of attn.kv the positions are not filtered: a wanted row's attention reads all of them. It
// holds one pass. A tensor without a name for each row, a shard, or one in device memory is an
// Error, which the probe keeps.
class Recorder final : public Sink {
 public:
  // Called with a whole tensor that was copied, and with what the model's device has of it until
  // the call returns. Not of caches, whose rows are put together anew for whoever reads them.
  using Copied = std::function<void(const Tensor& data, const TensorView& on_device)>;

  // digests: compute digests and row hashes too (a judge alone does not need those of everything;
  // row hashes of attn.kv, attn.k_rope and attn.v are always made). copied: may be empty.
  Recorder(Selection selection, bool digests, std::function<void(Pass)> finished,
           Copied copied = {});

  bool wants(const Point& point, int layer) const override;
  void begin(const PassInfo& pass) override;
  void record(const Record& record) override;
  void end() override;

 private:
  Selection selection_;
  bool digests_;
  std::function<void(Pass)> finished_;
  Copied copied_;
  std::unique_ptr<ThreadPool> threads_;  // null before there was something worth sharing
  Pass pass_;
};

}  // namespace lockstep
