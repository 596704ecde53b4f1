// A copy is made by the thread that asks for it first, and is there when others find it, so that no
// stream waits for another. Its memory is of that thread's stream, which takes it again when the
// last reader has let go: by then all that read it is done.
#include "reference/device_copies.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "reference/bridge.h"
#include "reference/own_stream.h"

namespace lockstep {
namespace {

// Fewer bytes are copied sooner than threads wait for each other; more of one tensor, or of all,
// would take memory from those who compute.
constexpr int64_t kLeastBytes = 1 << 15, kMostBytes = 16 << 20, kAllBytes = 128 << 20;

bool is_same(const std::weak_ptr<const void>& a, const std::shared_ptr<const void>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

}  // namespace

struct DeviceCopies::Copy {
  enum class State : uint8_t { begun, made, failed };

  Copy(const TensorView& view, std::weak_ptr<const void> whose, const c10::Device& where)
      : of(view), owner(std::move(whose)), device(where) {}

  TensorView of;
  std::weak_ptr<const void> owner;
  c10::Device device;
  std::atomic<State> state = State::begun;
  at::Tensor there;
};

namespace {

// Those that a thread has been given, as DeviceCopies::Copy.
thread_local std::vector<std::shared_ptr<const void>> given;

}  // namespace

DeviceCopies::DeviceCopies() = default;
DeviceCopies::~DeviceCopies() = default;

DeviceCopies::Reader::~Reader() { given.clear(); }

std::shared_ptr<DeviceCopies::Copy> DeviceCopies::known(const TensorView& view,
                                                        const std::shared_ptr<const void>& owner,
                                                        const c10::Device& device) const {
  const auto found = std::ranges::find_if(kept_, [&](const std::shared_ptr<Copy>& copy) {
    return copy->of.data == view.data && copy->of.dtype == view.dtype &&
           copy->of.shape == view.shape && copy->device == device && is_same(copy->owner, owner);
  });
  return found == kept_.end() ? nullptr : *found;
}

std::vector<std::shared_ptr<DeviceCopies::Copy>> DeviceCopies::keep(std::shared_ptr<Copy> copy) {
  std::vector<std::shared_ptr<Copy>> left;
  bytes_ += copy->of.bytes();
  for (auto at = kept_.begin(); at != kept_.end();) {
    if (!(*at)->owner.expired() && bytes_ <= kAllBytes) {
      ++at;
      continue;
    }
    bytes_ -= (*at)->of.bytes();
    left.push_back(std::move(*at));
    at = kept_.erase(at);
  }
  kept_.push_back(std::move(copy));
  return left;
}

void DeviceCopies::clear() {
  std::list<std::shared_ptr<Copy>> left;  // let go of when nobody waits for this thread
  const std::lock_guard lock(mutex_);
  left.swap(kept_);
  bytes_ = 0;
}

void DeviceCopies::make(const std::shared_ptr<Copy>& copy) {
  const auto tell = [&](Copy::State state) {
    copy->state = state;
    copy->state.notify_all();
  };
  try {
    copy->there = to_torch(copy->of, copy->device);
    wait_for_queued(copy->device);
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      if (std::erase(kept_, copy) > 0) bytes_ -= copy->of.bytes();
    }
    tell(Copy::State::failed);
    throw;
  }
  tell(Copy::State::made);
}

bool DeviceCopies::keeps(const TensorView& view, const std::shared_ptr<const void>& owner,
                         const c10::Device& device) {
  return !device.is_cpu() && owner && owner.get() == view.data && view.bytes() >= kLeastBytes &&
         view.bytes() <= kMostBytes;
}

at::Tensor DeviceCopies::of(const TensorView& view, const std::shared_ptr<const void>& owner,
                            const c10::Device& device) {
  if (!keeps(view, owner, device)) return to_torch(view, device);
  std::vector<std::shared_ptr<Copy>> left;  // let go of when nobody waits for this thread
  std::unique_lock lock(mutex_);
  std::shared_ptr<Copy> copy = known(view, owner, device);
  const bool is_known = copy != nullptr;
  if (!is_known) {
    copy = std::make_shared<Copy>(view, owner, device);
    left = keep(copy);
  }
  lock.unlock();
  if (!is_known) make(copy);
  copy->state.wait(Copy::State::begun);
  if (copy->state == Copy::State::failed) return to_torch(view, device);
  given.push_back(copy);
  return copy->there;
}

}  // namespace lockstep
