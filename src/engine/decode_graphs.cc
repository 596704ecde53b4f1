#include "src/engine/decode_graphs.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/base/check.h"
#include "src/engine/device_digests.h"
#include "src/model/show_cache.h"

namespace lockstep {
namespace {

constexpr int64_t kLeastPages = 8;  // in a page table, so that short requests share a graph

class Taps final : public Sink {
 public:
  explicit Taps(std::vector<Tap>& taps) : taps_(taps) {}
  bool on_device() const override { return true; }
  bool wants(const Point&, int) const override { return true; }
  void begin(const PassInfo&) override {}
  void record(const Record& record) override {
    taps_.push_back({record.point, record.layer, record.tensor});
  }
  void end() override {}

 private:
  std::vector<Tap>& taps_;
};

bool of_logits(const Point& p) { return p == point("logits") || p == point("token"); }

int64_t up_to_power_of_two(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
}

}  // namespace

bool decodes(const Batch& batch) {
  const DeviceBatch::Room room = DeviceBatch::room_of(batch);
  return room.tokens == room.requests && room.tokens == room.logit_rows;
}

DeviceBatch::Room decode_room(const Batch& batch) {
  const DeviceBatch::Room taken = DeviceBatch::room_of(batch);
  const int64_t rows = up_to_power_of_two(taken.requests);
  return {.tokens = rows,
          .requests = rows,
          .logit_rows = rows,
          .pages = up_to_power_of_two(std::max(taken.pages, kLeastPages))};
}

DecodeGraphs::Kept::Kept(const Kind& kind, const Model& model)
    : arguments(kind.room, model.device()),
      buffers(model.config(), model.dtype(), model.device(),
              kind.seen == Seen::nothing ? Activations::Lifetime::layer
                                         : Activations::Lifetime::pass) {}

Forward DecodeGraphs::run(Batch batch, Probe& probe, DigestedPass& digested) {
  const DigestRing* ring = probe.digests();
  const Kind kind{decode_room(batch), ring != nullptr ? Seen::digests
                                      : probe.on()    ? Seen::tensors
                                                      : Seen::nothing};
  Kept& kept = kept_.try_emplace(kind, kind, model_).first->second;
  kept.arguments.fill(std::move(batch), tables_);
  const Batch& arguments = kept.arguments.batch();
  const bool same_tables =
      kept.cos.data == arguments.cos.data && kept.cos.shape == arguments.cos.shape;
  if (kept.graph.empty() || !same_tables || (ring != nullptr && kept.ring != ring->id())) {
    const Forward forward = first(kept, kind.seen, probe, digested);
    keep(kept, kind.seen, probe);
    return forward;
  }
  if (before_replay_) before_replay_(arguments);
  kept.graph.replay();
  if (kind.seen == Seen::tensors) show(kept, probe);
  if (kind.seen == Seen::digests) digested = kept.digested, digested.info = arguments.info;
  return kept.forward;
}

// Op by op.
Forward DecodeGraphs::first(Kept& kept, Seen seen, Probe& probe, DigestedPass& digested) {
  const Batch& arguments = kept.arguments.batch();
  if (seen == Seen::digests)
    return forward_digested(model_, arguments, caches_, probe, &kept.buffers, digested);
  return model_.forward(arguments, caches_, probe, kept.buffers);
}

void DecodeGraphs::keep(Kept& kept, Seen seen, Probe& probe) {
  kept.graph = {};  // first of all, so that the next one can have its memory
  kept.taps.clear();
  kept.digested = {};
  kept.cos = kept.arguments.batch().cos;
  kept.ring = seen == Seen::digests ? probe.digests()->id() : 0;
  kept.graph = DeviceGraph([&] {
    const Batch& arguments = kept.arguments.batch();
    if (seen == Seen::digests) {
      kept.forward =
          forward_digested(model_, arguments, caches_, probe, &kept.buffers, kept.digested);
      return;
    }
    Taps taps(kept.taps);
    Probe tapping = seen == Seen::tensors ? Probe(&taps) : Probe();
    kept.forward = model_.forward(arguments, caches_, tapping, kept.buffers);
    check(tapping.failure().empty(), "{}", tapping.failure());
  });
}

void DecodeGraphs::show(const Kept& kept, Probe& probe) const {
  const Batch& batch = kept.arguments.batch();
  probe.begin(batch.info);
  for (const Tap& tap : kept.taps) {
    if (tap.tensor.empty())
      show_cache(model_, batch, caches_[static_cast<size_t>(tap.layer)], tap.layer, probe);
    else if (of_logits(*tap.point))
      probe.logits(*tap.point, tap.tensor);
    else
      probe(*tap.point, tap.layer, tap.tensor);
  }
  probe.end();
}

}  // namespace lockstep
