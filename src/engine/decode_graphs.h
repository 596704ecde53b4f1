#pragma once

#include <functional>
#include <map>
#include <vector>

#include "kernels/base/device_graph.h"
#include "probes/digest_ring.h"
#include "src/model/device_batch.h"
#include "src/model/model.h"

namespace lockstep {

// Room for a decode pass and, so that one graph serves many passes, for some more: requests and
// width of the page tables up to the next power of two. exact_rows: requests as they are.
DeviceBatch::Room decode_room(const Batch& batch, bool exact_rows);

// A tensor that a model showed while it was captured; every replay writes it anew.
struct Tap {
  const Point* point = nullptr;
  int layer = -1;
  TensorView tensor;  // empty of attn.kv
};

// A cache of CUDA graphs of decode passes, one for each shape that a pass may need, owned by the
// engine. A graph does what the same pass does op by op, to the bit: only the arguments differ from
// replay to replay, and they lie in device memory. Observed, each tensor of the pass has memory of
// its own: they are shown to the probe once the pass is done, or digested within the graph.
// Digested passes take turns at two graphs, each on a stream of its own, so that digests are still
// made while the next pass is computed. It is used by the engine's thread alone. Its graphs live as
// long as it does, each with its own arguments and buffers on the device.
class DecodeGraphs {
 public:
  // All borrowed. before_replay, which may be empty, sees the arguments in device memory.
  DecodeGraphs(Model& model, const std::vector<KvCache>& caches, RopeCache& tables,
               const std::function<void(const Batch&)>& before_replay, bool exact_rows)
      : model_(model),
        caches_(caches),
        tables_(tables),
        before_replay_(before_replay),
        exact_rows_(exact_rows) {}

  // Computes a pass that decodes, after rejoin(). The first one of each kind is computed op by op
  // and then captured. Returns what Model::forward does, padding included; `digested` is what a
  // probe that takes digests is to have once the pass is queued. Throws Error as ops do, and when
  // the device refuses a capture.
  Forward run(Batch batch, Probe& probe, DigestedPass& digested);

  // Queues the pass that follows the last one while the last one may still be at work: its tokens
  // are those that `chosen` has on the device by then, one a row. Whoever looks at the last pass
  // must have queued that, but for its digests; nobody sees the arguments before the replay.
  // Returns what `chosen` has where it stays until the next call of this or run(); the device's
  // stream of results waits for it. Nothing where there is no graph of such a pass yet, and then
  // none is queued.
  TensorView go_ahead(Batch batch, const TensorView& chosen, Probe& probe);
  // On a device, what is queued on its stream from now on waits for all passes and their digests.
  void rejoin() const;
  // Whether a pass is queued that does for this probe what run() would do.
  bool is_ahead(Probe& probe) const;
  // Does and returns as run() does, of the pass that is queued: all of `info` is known now.
  Forward take_ahead(PassInfo info, Probe& probe, DigestedPass& digested);

 private:
  enum class Observed : uint8_t { nothing, tensors, digests };
  struct Kind {
    DeviceBatch::Room room;
    Observed observed = Observed::nothing;
    int turn = 0;  // of digested passes
    auto operator<=>(const Kind&) const = default;
  };
  struct Captured {
    Captured(const Kind& kind, const Model& model);

    DeviceBatch arguments;
    Activations buffers;
    std::vector<Tap> taps;
    DigestedPass digested;
    Observed observed;
    CUstream_st* stream;  // of its replays
    uint64_t ring = 0;    // whose wants it was kept for
    Forward forward;
    DeviceGraph graph;
    TensorView cos;  // where the rotary tables were when it was captured, and how large
  };
  static Observed observed_by(Probe& probe);
  Kind kind_of(const Batch& batch, Probe& probe) const;
  bool is_current(const Captured& captured, Probe& probe) const;
  // A stream of passes waits from now on for what the device's has queued.
  void follow_device(CUstream_st* stream) const;
  Forward hand_over(const Captured& captured, Probe& probe, DigestedPass& digested);
  Forward run_eagerly(Captured& captured, Probe& probe, DigestedPass& digested);
  void capture(Captured& captured, Probe& probe);
  void show(const Captured& captured, Probe& probe) const;

  Model& model_;
  const std::vector<KvCache>& caches_;
  RopeCache& tables_;
  const std::function<void(const Batch&)>& before_replay_;
  bool exact_rows_;  // as of decode_room()
  std::map<Kind, Captured> captured_;
  Captured* ahead_ = nullptr;  // whose pass is queued
};

}  // namespace lockstep
