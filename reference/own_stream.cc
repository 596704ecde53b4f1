#include "reference/own_stream.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "reference/bridge.h"

namespace lockstep {

OwnStream::OwnStream(const c10::Device& device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guards(device.type());
  stream_ = std::make_shared<const c10::Stream>(guards.getStreamFromGlobalPool(device));
}

void OwnStream::run(const std::function<void()>& body) const {
  in_torch([&] {
    const at::AutoDispatchBelowAutograd below;
    if (!stream_) return body();
    const c10::StreamGuard guard(*stream_);
    body();
    stream_->synchronize();
  });
}

void wait_for_queued(const c10::Device& device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
}

}  // namespace lockstep
