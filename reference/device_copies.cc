// A copy is made by the thread that asks for it first, or that has it on the device, and is there
// when others find it, so that no stream waits for another. Its memory is of that thread's stream,
// which takes it again when the last tensor of it is let go: by then all that read it is done.
#include "reference/device_copies.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "reference/bridge.h"
#include "reference/own_stream.h"

namespace lockstep {
namespace {

// Fewer bytes are copied sooner than threads wait for each other; more of one tensor, or of all,
// would take memory from those who compute.
constexpr int64_t kLeastBytes = 1 << 15, kMostBytes = 16 << 20, kAllBytes = 128 << 20;
// The same of those that were there already: a layer or two of a long prompt, or a short one whole.
constexpr int64_t kMostHeldBytes = 64 << 20, kAllHeldBytes = int64_t{1} << 30;
// And the part of a bound that they may take.
constexpr int64_t kHeldPart = 16;

bool is_same(const std::weak_ptr<const void>& a, const std::shared_ptr<const void>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

}  // namespace

struct DeviceCopies::Copy {
  enum class State : uint8_t { begun, made, failed };

  Copy(const TensorView& view, std::weak_ptr<const void> whose, const c10::Device& where)
      : of(view), owner(std::move(whose)), device(where) {}
  const char* begin() const { return of.as<const char>(); }
  const char* end() const { return begin() + of.bytes(); }

  TensorView of;
  std::weak_ptr<const void> owner;
  c10::Device device;
  bool is_held = false;
  uint64_t number = 0;  // in the order in which they were made
  std::atomic<State> state = State::begun;
  at::Tensor there;
};

namespace {

// Those that a thread has been given, as DeviceCopies::Copy.
thread_local std::vector<std::shared_ptr<const void>> given;

}  // namespace

DeviceCopies::DeviceCopies(int64_t memory)
    : most_held_(memory > 0 ? std::min(kAllHeldBytes, memory / kHeldPart) : kAllHeldBytes) {}
DeviceCopies::~DeviceCopies() = default;

DeviceCopies::Reader::~Reader() { given.clear(); }

// The bytes of two tensors that begin at different places may overlap where the owner of one is
// gone.
std::shared_ptr<DeviceCopies::Copy> DeviceCopies::known(const TensorView& view,
                                                        const std::shared_ptr<const void>& owner,
                                                        const c10::Device& device) const {
  const auto* const begin = view.as<const char>();
  auto found = kept_.upper_bound(begin);
  if (found == kept_.begin()) return nullptr;
  const std::shared_ptr<Copy>& copy = std::prev(found)->second;
  const bool is_of_it =
      begin + view.bytes() <= copy->end() && copy->device == device && is_same(copy->owner, owner);
  return is_of_it ? copy : nullptr;
}

int64_t& DeviceCopies::bytes_of_kind(const Copy& copy) {
  return copy.is_held ? held_bytes_ : copied_bytes_;
}

DeviceCopies::Copies DeviceCopies::drop(const std::function<bool(const Copy&)>& which) {
  Copies left;
  std::erase_if(kept_, [&](auto& entry) {
    if (!which(*entry.second)) return false;
    bytes_of_kind(*entry.second) -= entry.second->of.bytes();
    left.push_back(std::move(entry.second));
    return true;
  });
  return left;
}

// The oldest ones of its kind go where there are too many.
DeviceCopies::Copies DeviceCopies::keep(std::shared_ptr<Copy> copy) {
  Copies left = drop(
      [&](const Copy& other) { return other.owner.expired() || other.begin() == copy->begin(); });
  copy->number = ++made_;
  bytes_of_kind(*copy) += copy->of.bytes();
  kept_.emplace(copy->begin(), copy);
  while (bytes_of_kind(*copy) > (copy->is_held ? most_held_ : kAllBytes)) {
    uint64_t oldest = made_;
    for (const auto& [begin, other] : kept_)
      if (other->is_held == copy->is_held) oldest = std::min(oldest, other->number);
    const Copies old = drop([&](const Copy& other) { return other.number == oldest; });
    left.insert(left.end(), old.begin(), old.end());
  }
  return left;
}

bool DeviceCopies::clear() {
  Copies left;  // let go of when nobody waits for this thread
  const std::lock_guard lock(mutex_);
  const bool held = held_bytes_ > 0;
  left = drop([](const Copy&) { return true; });
  return held;
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
      drop([&](const Copy& other) { return &other == copy.get(); });
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

// It is made before it is among those that others find, of the memory of those that are gone.
void DeviceCopies::hold(const TensorView& here, const std::shared_ptr<const void>& owner,
                        const TensorView& there, const c10::Device& device) {
  check(here.shape == there.shape && here.dtype == there.dtype,
        "a device was said to have a tensor {} of {}, found {} of {}: show the one that was copied",
        here.shape.text(), name_of(here.dtype), there.shape.text(), name_of(there.dtype));
  const int64_t bytes = here.bytes();
  if (there.device != Device{DeviceKind::cuda, device.index()} || !owner ||
      owner.get() != here.data || bytes < kLeastBytes ||
      bytes > std::min(kMostHeldBytes, most_held_))
    return;
  {
    Copies gone;  // let go of when nobody waits for this thread
    const std::lock_guard lock(mutex_);
    gone = drop([](const Copy& other) { return other.owner.expired(); });
  }
  const auto copy = std::make_shared<Copy>(here, owner, device);
  copy->is_held = true;
  copy->there = to_torch_there(there).clone();
  wait_for_queued(device);
  copy->state = Copy::State::made;
  Copies left;
  const std::lock_guard lock(mutex_);
  left = keep(copy);
}

at::Tensor DeviceCopies::of(const TensorView& view, const std::shared_ptr<const void>& owner,
                            const c10::Device& device) {
  if (device.is_cpu() || !owner || owner.get() != view.data) return to_torch(view, device);
  Copies left;  // let go of when nobody waits for this thread
  std::unique_lock lock(mutex_);
  std::shared_ptr<Copy> copy = known(view, owner, device);
  const bool is_known = copy != nullptr;
  if (!is_known && keeps(view, owner, device)) {
    copy = std::make_shared<Copy>(view, owner, device);
    left = keep(copy);
  }
  lock.unlock();
  if (!copy) return to_torch(view, device);
  if (!is_known) make(copy);
  copy->state.wait(Copy::State::begun);
  if (copy->state == Copy::State::failed) return to_torch(view, device);
  given.push_back(copy);
  if (copy->of.shape == view.shape && copy->of.dtype == view.dtype) return copy->there;
  return part_of(copy->there, view, view.as<const char>() - copy->begin());
}

}  // namespace lockstep
