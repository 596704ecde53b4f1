#include "probes/probe.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "kernels/check.h"
#include "kernels/memory.h"
#include "probes/digest_ring.h"

namespace lockstep {

template <typename Call>
void Probe::guarded(Call call) {
  if (!sink_) return;
  try {
    call();
  } catch (const std::exception& error) {
    sink_ = nullptr;
    failure_ = error.what();
  }
}

void Probe::begin(const PassInfo& pass) {
  guarded([&] {
    rows_.clear();
    logit_rows_.clear();
    for (const PassRow& row : pass.rows) rows_.push_back(row.row);
    for (int32_t index : pass.logit_rows) logit_rows_.push_back(rows_[static_cast<size_t>(index)]);
    sink_->begin(pass);
  });
}

void Probe::end() {
  guarded([&] { sink_->end(); });
}

DigestRing* Probe::digests() {
  guarded([&] {
    DigestSink* const taker = sink_->digests();
    if (taker != nullptr && ring_ == nullptr) ring_ = std::make_shared<DigestRing>(*taker);
  });
  return sink_ == nullptr ? nullptr : ring_.get();
}

void Probe::push(DigestedPass pass) {
  guarded([&] {
    ring_->push(std::move(pass));
    check(ring_->failure().empty(), "{}", ring_->failure());
  });
}

void Probe::flush() {
  if (ring_ == nullptr) return;
  guarded([&] {
    ring_->flush();
    check(ring_->failure().empty(), "{}", ring_->failure());
  });
}

void Probe::emit(const Point& point, int layer, std::span<const Row> rows,
                 const TensorView& tensor) {
  guarded([&] {
    if (!sink_->wants(point, layer)) return;
    if (tensor.device == Device::cpu || sink_->on_device())
      return sink_->record({&point, layer, rows, tensor});
    const TensorView shown = tensor.slice(0, std::min(tensor.rows(), std::ssize(rows)));
    // This waits until the tensor is made, and says what went wrong so far.
    const Tensor seen = copy_on(Device::cpu, shown), before = copy_on(Device::cpu, seen);
    sink_->record({&point, layer, rows, seen});
    const auto bytes = static_cast<size_t>(shown.bytes());
    if (bytes > 0 && std::memcmp(seen.view().data, before.view().data, bytes) != 0)
      copy(shown, seen);
  });
}

}  // namespace lockstep
