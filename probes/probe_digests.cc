// Apart from the rest of Probe: what shows tensors and no digests, as the reference does, is linked
// without the ring and its threads.
#include "kernels/base/check.h"
#include "probes/digest_ring.h"
#include "probes/probe.h"

namespace lockstep {

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

}  // namespace lockstep
