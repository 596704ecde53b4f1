// Where memory comes from: on the CPU aligned to a cache line, with room for one more behind it, so
// that kernels may read whole vectors at the end; on a device from its runtime, which is registered
// when the device is opened. The table of runtimes is shared by all threads, behind a mutex; a
// runtime stays registered until the process ends.
//
// The system clears the pages of new memory when they are first written, which takes longer than to
// copy a tensor there, and the C library gives large memory back at once. So that of a layer's
// tensors is kept for the next layer's.
#include "kernels/base/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <mutex>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

constexpr int64_t kAlignment = 64;  // a cache line, and the widest vector register

// The runtimes of the devices that were opened, by number.
std::mutex runtimes_mutex;
std::map<int, DeviceRuntime> runtimes;
std::function<void(Device)> keeper;  // under the same lock

// The host's large memory. What is kept and what is in use are together never more than what was
// once in use, and what is kept has a bound, since others want memory too. Several threads may use
// it.
class HostMemory {
 public:
#ifdef __SANITIZE_ADDRESS__
  // Memory that is kept would hide that it is used after its release.
  static constexpr int64_t kLarge = std::numeric_limits<int64_t>::max();
#else
  static constexpr int64_t kLarge = 1 << 20;  // smaller memory is the C library's
#endif
  static constexpr int64_t kMostKept = int64_t{2} << 30;

  // Null when there is not enough.
  void* allocate(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    void* memory = take(bytes);
    if (memory == nullptr) {
      give_back(kept_ - std::max<int64_t>(0, most_ - used_ - bytes));
      memory = std::aligned_alloc(kAlignment, bytes);
    }
    if (memory == nullptr && kept_ > 0) {
      give_back(kept_);
      memory = std::aligned_alloc(kAlignment, bytes);
    }
    if (memory == nullptr) return nullptr;
    used_ += bytes;
    most_ = std::max(most_, used_ + kept_);
    return memory;
  }

  // `bytes`: as they were asked for.
  void release(void* memory, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    used_ -= bytes;
    kept_ += bytes;
    blocks_.push_back({memory, bytes});
    give_back(kept_ - kMostKept);
  }

 private:
  struct Block {
    void* memory;
    int64_t bytes;
  };

  // Memory of just that size: tensors of one layer have those of the next.
  void* take(int64_t bytes) {
    const auto found = std::ranges::find(blocks_, bytes, &Block::bytes);
    if (found == blocks_.end()) return nullptr;
    void* const memory = found->memory;
    blocks_.erase(found);
    kept_ -= bytes;
    return memory;
  }
  // At least so much, what was kept longest first.
  void give_back(int64_t bytes) {
    for (; bytes > 0 && !blocks_.empty(); blocks_.pop_front()) {
      bytes -= blocks_.front().bytes;
      kept_ -= blocks_.front().bytes;
      std::free(blocks_.front().memory);
    }
  }

  std::mutex mutex_;
  std::deque<Block> blocks_;                // that are kept
  int64_t used_ = 0, kept_ = 0, most_ = 0;  // bytes
};

// Never destroyed: tensors of static storage may be released after it.
HostMemory& host_memory() {
  static HostMemory& memory = *new HostMemory;
  return memory;
}

std::function<void(Device)> registered_keeper() {
  const std::lock_guard lock(runtimes_mutex);
  return keeper;
}

// The memory's own function releases it, from whatever thread lets go of it last.
std::shared_ptr<void> allocate(int64_t bytes, Device device) {
  const int64_t size = memory_for(bytes, device);
  if (device == Device::cpu && size < HostMemory::kLarge)
    return {std::aligned_alloc(kAlignment, size), &std::free};
  if (device == Device::cpu) {
    void* memory = host_memory().allocate(size);
    if (memory == nullptr) return nullptr;
    return {memory, [size](void* of) { host_memory().release(of, size); }};
  }
  const DeviceRuntime& runtime = runtime_of(device);
  void* memory = runtime.allocate(size);
  if (memory == nullptr) {
    if (const std::function<void(Device)> give_back = registered_keeper()) give_back(device);
    memory = runtime.allocate(size);
  }
  if (memory == nullptr) return nullptr;  // which has nothing to release
  return {memory, runtime.release};
}

}  // namespace

// The bytes that are really taken.
int64_t memory_for(int64_t bytes, Device device) {
  // Room for one more line: kernels may then read whole vectors at the end of a tensor.
  if (device == Device::cpu) return (bytes / kAlignment + 2) * kAlignment;
  // So that alike wants can share memory, and none wastes much: a multiple of an eighth of its
  // size, or of what the device hands out large memory in.
  constexpr int64_t kLeast = 512, kPage = int64_t{2} << 20;
  int64_t unit = kLeast;
  while (unit * 16 <= bytes && unit < kPage) unit *= 2;
  return std::max(kLeast, (bytes + unit - 1) / unit * unit);
}

void register_runtime(const DeviceRuntime& runtime) {
  const std::lock_guard lock(runtimes_mutex);
  runtimes[runtime.index] = runtime;
}

void register_keeper(std::function<void(Device)> give_back) {
  const std::lock_guard lock(runtimes_mutex);
  keeper = std::move(give_back);
}

void forget_runtimes() {
  const std::lock_guard lock(runtimes_mutex);
  runtimes.clear();
}

// Nodes of a map stay where they are, so that the reference outlives the lock.
const DeviceRuntime& runtime_of(Device device) {
  const std::lock_guard lock(runtimes_mutex);
  const auto found = runtimes.find(device.index);
  check(device.kind == DeviceKind::cuda && found != runtimes.end(),
        "the CUDA device {} was not opened: open it first, or use --device cpu", device.index);
  return found->second;
}

CUstream_st* stream_of(Device device) {
  return device == Device::cpu ? nullptr : runtime_of(device).stream;
}

int64_t device_memory_left(Device device) { return runtime_of(device).available(); }

// Waits where the result is in host memory; on a device it is queued.
void copy(const TensorView& to, const TensorView& from) {
  check(to.bytes() == from.bytes(), "{} bytes cannot be copied into a tensor of {}", from.bytes(),
        to.bytes());
  if (from.bytes() == 0) return;
  if (to.device == Device::cpu && from.device == Device::cpu) {
    std::memcpy(to.data, from.data, from.bytes());
    return;
  }
  const DeviceRuntime& runtime = runtime_of(to.device == Device::cpu ? from.device : to.device);
  // A stream of one device does not wait for that of another.
  if (from.device != Device::cpu && from.device.index != runtime.index) wait_for(from.device);
  runtime.copy(to.data, from.data, from.bytes(), runtime.stream);
  if (to.device == Device::cpu) runtime.wait(runtime.stream);
}

Tensor copy_on(Device device, const TensorView& from) {
  Tensor made(from.shape, from.dtype, device);
  copy(made, from);
  return made;
}

void wait_for(Device device) {
  if (device == Device::cpu) return;
  const DeviceRuntime& runtime = runtime_of(device);
  runtime.wait(runtime.stream);
}

Tensor::Tensor(const Shape& shape, DType dtype, Device device)
    : view_{nullptr, dtype, device, shape} {
  if (std::ranges::any_of(shape.extents(), [](int64_t extent) { return extent < 0; }))
    fail("a tensor cannot have the shape {}: extents are not negative", shape.text());
  memory_ = allocate(view_.bytes(), device);
  if (memory_ == nullptr)  // else the device is not asked what it has left, which takes it long
    fail(
        "the {2} has not that much memory left: {0} bytes for a tensor {1}{3}: use fewer or "
        "smaller --pages, or a shorter prompt",
        view_.bytes(), shape.text(), device == Device::cpu ? "host" : "device",
        device == Device::cpu ? "" : fmt::format(", but {} bytes", device_memory_left(device)));
  view_.data = memory_.get();
}

Tensor Tensor::pinned(const Shape& shape, DType dtype, Device device) {
  const DeviceRuntime& runtime = runtime_of(device);
  Tensor made;
  made.view_ = {nullptr, dtype, Device::cpu, shape};
  made.memory_ = {runtime.pin(made.view_.bytes()), runtime.unpin};
  made.view_.data = made.memory_.get();
  return made;
}

Tensor Tensor::part(int64_t offset, const Shape& shape, DType dtype) const {
  Tensor made;
  made.view_ = {view_.as<char>() + offset, dtype, view_.device, shape};
  check(offset >= 0 && offset + made.view_.bytes() <= view_.bytes(),
        "{} bytes from byte {} on are outside a tensor of {}", made.view_.bytes(), offset,
        view_.bytes());
  made.memory_ = memory_;
  return made;
}

}  // namespace lockstep
