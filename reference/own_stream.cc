// Streams are made by the reference's kernels, which need their handles: LibTorch numbers a stream
// that is not its own by its handle, and the device's own by 0. What is queued on the device's own
// waits for the engine's streams, and they for it, and every launch there takes the driver's lock:
// threads that compute at once would wait for each other.
#include "reference/own_stream.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "reference/attention_kernels.h"
#include "reference/bridge.h"

namespace lockstep {
namespace {

// Streams that nobody has. They are never destroyed: LibTorch keeps memory for each.
struct Unused {
  std::mutex mutex;
  std::vector<c10::Stream> streams;
};
Unused& unused() {
  static auto& all = *new Unused;
  return all;
}

c10::Stream some_stream(const c10::Device& device) {
  Unused& all = unused();
  const std::lock_guard lock(all.mutex);
  // The one that was let go last, as LibTorch hands on cuBLAS's handles: for each pair of a handle
  // and a stream that were ever together it keeps memory.
  const auto found = std::ranges::find(all.streams.rbegin(), all.streams.rend(), device,
                                       [](const c10::Stream& one) { return one.device(); });
  if (found == all.streams.rend())
    return c10::Stream::unpack3(reinterpret_cast<c10::StreamId>(new_stream(device.index())),
                                device.index(), device.type());
  const c10::Stream stream = *found;
  all.streams.erase(std::prev(found.base()));
  return stream;
}

// Those that a thread has, by device, until it ends.
struct OfThread {
  std::map<c10::DeviceIndex, std::pair<c10::Stream, OwnStream>> all;
  ~OfThread() {
    const std::lock_guard lock(unused().mutex);
    for (const auto& [device, one] : all) unused().streams.push_back(one.first);
  }
};

constexpr c10::StreamId kOfDevice = 0;  // the device's own

// For what was queued before there was other trouble, which is the one to be told.
void wait_quietly(const c10::Stream& stream) {
  try {
    stream.synchronize();
  } catch (const std::exception&) {
  }
}

}  // namespace

OwnStream::OwnStream(const c10::Device& device) {
  if (device.is_cpu()) return;
  if (!has_attention_kernels()) {
    const c10::impl::VirtualGuardImpl guards(device.type());
    stream_ = std::make_shared<const c10::Stream>(guards.getStreamFromGlobalPool(device));
    return;
  }
  const auto give_back = [](const c10::Stream* stream) {
    const std::lock_guard lock(unused().mutex);
    unused().streams.push_back(*stream);
    delete stream;
  };
  stream_ = {new c10::Stream(some_stream(device)), give_back};
}

OwnStream::OwnStream(const c10::Stream& stream)
    : stream_(std::make_shared<const c10::Stream>(stream)) {}

const OwnStream& OwnStream::of_this_thread(const c10::Device& device) {
  static const OwnStream none{c10::Device(c10::kCPU)};
  if (device.is_cpu() || !has_attention_kernels()) return none;
  thread_local OfThread own;
  auto known = own.all.find(device.index());
  if (known == own.all.end()) {
    const c10::Stream stream = some_stream(device);
    known = own.all.try_emplace(device.index(), stream, OwnStream(stream)).first;
  }
  return known->second.second;
}

void OwnStream::run(const std::function<void()>& body) const {
  in_torch([&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    if (!stream_) return body();
    const c10::StreamGuard guard(*stream_);
    try {
      body();
    } catch (...) {
      wait_quietly(*stream_);
      throw;
    }
    stream_->synchronize();
  });
}

void run_by_thread(const c10::Device& device, const std::function<void()>& body) {
  const bool by_own =
      device.is_cpu() ||
      c10::impl::VirtualGuardImpl(device.type()).getStream(device).id() != kOfDevice;
  return by_own ? in_torch(body) : OwnStream::of_this_thread(device).run(body);
}

KernelQueue queue_of_this_thread(const c10::Device& device) {
  const c10::StreamId id = c10::impl::VirtualGuardImpl(device.type()).getStream(device).id();
  check(id % 2 == 0,
        "kernels of the reference want a stream of the reference or the device's, found LibTorch's "
        "{}",
        id);
  return {device.index(), reinterpret_cast<void*>(id)};
}

void keep_for_queued(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guards(tensor.device().type());
  tensor.record_stream(guards.getStream(tensor.device()));
}

void wait_for_queued(const c10::Device& device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
}

}  // namespace lockstep
