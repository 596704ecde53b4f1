#include "src/engine/decode_graphs.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/check.h"
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
              kind.observed ? Activations::Lifetime::pass : Activations::Lifetime::layer) {}

Forward DecodeGraphs::run(Batch batch, Probe& probe) {
  const Kind kind{decode_room(batch), probe.on()};
  Kept& kept = kept_.try_emplace(kind, kind, model_).first->second;
  kept.arguments.fill(std::move(batch), tables_);
  const Batch& arguments = kept.arguments.batch();
  if (kept.graph.empty() || kept.cos != arguments.cos.data) {
    const Forward forward = model_.forward(arguments, caches_, probe, kept.buffers);
    keep(kept, kind.observed);
    return forward;
  }
  if (before_replay_) before_replay_(arguments);
  kept.graph.replay();
  if (probe.on()) show(kept, probe);
  return kept.forward;
}

void DecodeGraphs::keep(Kept& kept, bool observed) {
  kept.graph = {};  // first of all, so that the next one can have its memory
  kept.taps.clear();
  kept.cos = kept.arguments.batch().cos.data;
  kept.graph = DeviceGraph([&] {
    Taps taps(kept.taps);
    Probe probe = observed ? Probe(&taps) : Probe();
    kept.forward = model_.forward(kept.arguments.batch(), caches_, probe, kept.buffers);
    check(probe.failure().empty(), "{}", probe.failure());
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
