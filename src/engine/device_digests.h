#pragma once

#include <memory>
#include <set>
#include <vector>

#include "kernels/base/digest.h"
#include "probes/digest_ring.h"
#include "src/model/model.h"

namespace lockstep {

// A sink that digests the tensors of one pass on the device that computes it, as the model shows
// them. Nothing of it waits for the host, so that it can be captured in a graph. It lives for one
// pass, on the engine's thread.
class DeviceDigests final : public Sink {
 public:
  // layer: buffers are used again within the pass. Each tensor is digested on the stream of the
  // ops when it is shown, and copied when it is to be kept. pass: all tensors outlive the pass. A
  // few layers' are digested in one launch, and caches, eight at a time, in others, while the ops
  // go on; those that one launch makes meanwhile, in one launch, and all caches in another.
  using Lifetime = Activations::Lifetime;

  // All borrowed: the arguments of the pass in device memory, and the probe, one with a ring, whose
  // sink wants them.
  DeviceDigests(const Model& model, const Batch& arguments, const std::vector<KvCache>& caches,
                Probe& seen, Lifetime lifetime);

  bool on_device() const override { return true; }
  bool wants(const Point& point, int layer) const override { return seen_.wants(point, layer); }
  bool waits(const ReadyOf& ready) override;
  void begin(const PassInfo&) override {}
  void record(const Record& record) override;
  void end() override;

  // The digests of the pass, once it has ended. Every replay of a graph writes them anew.
  DigestedPass result() const {
    std::vector<std::shared_ptr<const Tensor>> kept = copies_;
    if (list_) kept.push_back(list_);
    return {layout_, digests_, kept, arguments_.info, lifetime_ == Lifetime::layer, ops_stream_};
  }

 private:
  DigestLayout::Tap& tap_of(const Record& record);
  template <typename T>
  T* place(int64_t bytes) const;  // in the block of digests
  DigestJob job_of(const DigestLayout::Tap& tap) const;
  std::vector<DigestJob> jobs_of(const DigestLayout::Tap& tap);
  CacheJob cache_job_of(const DigestLayout::Tap& tap) const;
  void follow_ops(CUstream_st* stream);
  void flush(CUstream_st* stream);
  void flush_caches(CUstream_st* stream);
  void flush_meanwhile();

  const Model& model_;
  const Batch& arguments_;
  const std::vector<KvCache>& caches_;
  Probe& seen_;
  DigestRing* ring_;
  Lifetime lifetime_;
  ReadyOf ready_of_;  // empty: what is shown is made by the ops that are queued
  CUstream_st* ops_stream_;
  const DigestMaker& maker_;  // of the model's device
  std::shared_ptr<DigestLayout> layout_ = std::make_shared<DigestLayout>();
  std::shared_ptr<const Tensor> digests_;
  std::vector<std::shared_ptr<const Tensor>> copies_;
  std::vector<DigestJob> jobs_;  // not yet queued, as
  std::vector<CacheJob> cache_jobs_;
  std::vector<DigestJob> meanwhile_;    // what is made while a launch goes on
  std::shared_ptr<const Tensor> list_;  // of its digests
  std::vector<Tensor> scratch_;         // of every launch
  std::set<CUstream_st*> used_;         // the streams besides that of the ops
};

// Model::forward with every tensor that the probe's sink wants digested; the probe is one with a
// ring, for which `digested` is meant. With `buffers` whose tensors outlive the pass; without, the
// model's own. Throws Error when the probe has no ring, or shows what is no place of the model.
Forward forward_digested(Model& model, const Batch& arguments, const std::vector<KvCache>& caches,
                         Probe& probe, Activations* buffers, DigestedPass& digested);

}  // namespace lockstep
