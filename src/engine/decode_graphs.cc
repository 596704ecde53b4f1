// A graph is captured after its kind of pass was computed op by op once, so that everything that is
// allocated at the first call is there. It is captured anew when the rotary tables were moved or
// grown, or another ring of digests listens. Room that a pass does not fill is padded with requests
// that have no context.
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

int64_t up_to_power_of_two(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
}

}  // namespace

bool Batch::decodes() const {
  const DeviceBatch::Room room = DeviceBatch::room_of(*this);
  return room.tokens == room.requests && room.tokens == room.logit_rows;
}

DeviceBatch::Room decode_room(const Batch& batch, bool exact_rows) {
  const DeviceBatch::Room taken = DeviceBatch::room_of(batch);
  const int64_t rows = exact_rows ? taken.requests : up_to_power_of_two(taken.requests);
  return {.tokens = rows,
          .requests = rows,
          .logit_rows = rows,
          .pages = up_to_power_of_two(std::max(taken.pages, kLeastPages))};
}

DecodeGraphs::Captured::Captured(const Kind& kind, const Model& model)
    : arguments(kind.room, model.device()),
      buffers(model.config(), model.dtype(), model.device(),
              kind.observed == Observed::nothing ? Activations::Lifetime::layer
                                                 : Activations::Lifetime::pass,
              model.placement().over_ranks),
      observed(kind.observed),
      stream(kind.observed == Observed::digests
                 ? runtime_of(model.device()).digests.pass_streams[kind.turn]
                 : stream_of(model.device())) {}

DecodeGraphs::Observed DecodeGraphs::observed_by(Probe& probe) {
  if (probe.digests() != nullptr) return Observed::digests;
  return probe.on() ? Observed::tensors : Observed::nothing;
}

DecodeGraphs::Kind DecodeGraphs::kind_of(const Batch& batch, Probe& probe) const {
  const Observed observed = observed_by(probe);
  const int turn = observed == Observed::digests ? batch.info.pass % 2 : 0;
  return {decode_room(batch, exact_rows_), observed, turn};
}

// A graph has the addresses of the tables in it; and what a ring wants decided what it digests.
bool DecodeGraphs::is_current(const Captured& captured, Probe& probe) const {
  const Batch& arguments = captured.arguments.batch();
  const DigestRing* ring = probe.digests();
  return !captured.graph.empty() && captured.cos.data == arguments.cos.data &&
         captured.cos.shape == arguments.cos.shape &&
         (ring == nullptr || captured.ring == ring->id());
}

Forward DecodeGraphs::run(Batch batch, Probe& probe, DigestedPass& digested) {
  const Kind kind = kind_of(batch, probe);
  Captured& captured = captured_.try_emplace(kind, kind, model_).first->second;
  captured.arguments.fill(std::move(batch), tables_);
  if (!is_current(captured, probe)) {
    const Forward forward = run_eagerly(captured, probe, digested);
    capture(captured, probe);
    return forward;
  }
  if (before_replay_) before_replay_(captured.arguments.batch());
  if (captured.observed == Observed::digests) follow_device(captured.stream);
  captured.graph.replay(captured.stream);
  return hand_over(captured, probe, digested);
}

void DecodeGraphs::follow_device(CUstream_st* stream) const {
  const DeviceRuntime& device = runtime_of(model_.device());
  device.digests.stream_wait(stream, device.stream);
}

void DecodeGraphs::rejoin() const {
  if (model_.device() == Device::cpu) return;
  const DeviceRuntime& device = runtime_of(model_.device());
  for (CUstream_st* stream : device.digests.pass_streams)
    device.digests.stream_wait(device.stream, stream);
}

TensorView DecodeGraphs::go_ahead(Batch batch, const TensorView& chosen, Probe& probe) {
  ahead_ = nullptr;
  const auto found = captured_.find(kind_of(batch, probe));
  if (found == captured_.end()) return {};
  Captured& captured = found->second;
  const TensorView tokens = chosen.slice(0, batch.size());
  const DigestMaker& digests = runtime_of(model_.device()).digests;
  const bool takes_turns = captured.observed == Observed::digests;
  if (takes_turns) {
    // It need not wait for the digests of the last pass, whose tokens stay where they are. Nothing
    // but the arguments comes between the two passes: each event more takes a microsecond.
    follow_device(captured.stream);
    digests.follow_ops(captured.stream);
    digests.follow_ops(digests.result_stream);
  }
  captured.arguments.fill(std::move(batch), tables_, tokens, captured.stream);
  if (!is_current(captured, probe)) {
    rejoin();  // tables that grew gave memory back that the last pass may still read
    return {};
  }
  if (!takes_turns) digests.stream_wait(digests.result_stream, captured.stream);
  captured.graph.replay(captured.stream);
  ahead_ = &captured;
  return takes_turns ? tokens : captured.arguments.batch().tokens.view().slice(0, tokens.count());
}

bool DecodeGraphs::is_ahead(Probe& probe) const {
  return ahead_ != nullptr && ahead_->observed == observed_by(probe) && is_current(*ahead_, probe);
}

Forward DecodeGraphs::take_ahead(PassInfo info, Probe& probe, DigestedPass& digested) {
  Captured& captured = *std::exchange(ahead_, nullptr);
  captured.arguments.set_info(std::move(info));
  return hand_over(captured, probe, digested);
}

// To whoever observes the pass, which is queued.
Forward DecodeGraphs::hand_over(const Captured& captured, Probe& probe, DigestedPass& digested) {
  if (captured.observed == Observed::tensors) show(captured, probe);
  if (captured.observed == Observed::digests) {
    digested = captured.digested;
    digested.info = captured.arguments.batch().info;
    digested.stream = captured.stream;
  }
  return captured.forward;
}

// Op by op.
Forward DecodeGraphs::run_eagerly(Captured& captured, Probe& probe, DigestedPass& digested) {
  const Batch& arguments = captured.arguments.batch();
  if (captured.observed == Observed::digests)
    return forward_digested(model_, arguments, caches_, probe, &captured.buffers, digested);
  return model_.forward(arguments, caches_, probe, captured.buffers);
}

void DecodeGraphs::capture(Captured& captured, Probe& probe) {
  // A pass that was queued ahead and is of no use may work in it: the stream is behind all of them.
  wait_for(model_.device());
  captured.graph = {};  // first of all, so that the next one can have its memory
  captured.taps.clear();
  captured.digested = {};
  captured.cos = captured.arguments.batch().cos;
  captured.ring = captured.observed == Observed::digests ? probe.digests()->id() : 0;
  captured.graph = DeviceGraph(model_.device(), [&] {
    const Batch& arguments = captured.arguments.batch();
    if (captured.observed == Observed::digests) {
      captured.forward =
          forward_digested(model_, arguments, caches_, probe, &captured.buffers, captured.digested);
      return;
    }
    Taps taps(captured.taps);
    Probe tapping = captured.observed == Observed::tensors ? Probe(&taps) : Probe();
    captured.forward = model_.forward(arguments, caches_, tapping, captured.buffers);
    check(tapping.failure().empty(), "{}", tapping.failure());
  });
}

void DecodeGraphs::show(const Captured& captured, Probe& probe) const {
  const Batch& batch = captured.arguments.batch();
  probe.begin(batch.info);
  for (const Tap& tap : captured.taps) {
    if (tap.tensor.empty())
      show_cache(model_, batch, caches_[tap.layer], tap.layer, probe);
    else if (tap.point->is_of_logits())
      probe.logits(*tap.point, tap.tensor);
    else
      probe(*tap.point, tap.layer, tap.tensor);
  }
  probe.end();
}

}  // namespace lockstep
