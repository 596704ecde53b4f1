#pragma once

#include <functional>
#include <memory>
#include <span>

#include "kernels/base/check.h"
#include "kernels/base/digest.h"
#include "kernels/base/sample.h"
#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// The bytes that a part of a buffer takes, so that the next part begins on a line of the cache.
constexpr int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// An array that owns its memory, on the CPU or a CUDA device, 64-byte aligned at least. Copies
// share it, and the last of them frees it; whoever writes to one writes to all. Fresh memory is not
// initialised.
class Tensor {
 public:
  Tensor() = default;
  // Throws Error when the device has not that much memory, or this process has no such device.
  Tensor(const Shape& shape, DType dtype, Device device = Device::cpu);
  // On the CPU, where that CUDA device copies to without a detour: for what every pass copies.
  // Takes long to make.
  static Tensor pinned(const Shape& shape, DType dtype, Device device);

  const TensorView& view() const { return view_; }
  // A tensor in this one's memory, `offset` bytes from its begin, which it keeps from being freed.
  // Throws Error when this one has not that much.
  Tensor part(int64_t offset, const Shape& shape, DType dtype) const;
  operator const TensorView&() const { return view_; }
  // Keeps the memory for as long as it lives; null: there is none.
  std::shared_ptr<const void> memory() const { return memory_; }
  template <typename T>
  T* as() const {
    return view_.as<T>();
  }

 private:
  std::shared_ptr<void> memory_;
  TensorView view_;
};

// A CPU tensor that holds a copy of `values`, which are as wide as the elements of `dtype`. Throws
// Error when they are not, or not as many as `shape` has.
template <typename T>
Tensor tensor_of(std::span<const T> values, const Shape& shape, DType dtype) {
  Tensor tensor(shape, dtype);
  check(tensor.view().bytes() == static_cast<int64_t>(values.size_bytes()),
        "a tensor {1} of {2} has {0} bytes, found {3}", tensor.view().bytes(), shape.text(),
        name_of(dtype), values.size_bytes());
  std::copy(values.begin(), values.end(), tensor.as<T>());
  return tensor;
}

// A copy within a device. Of several that are made at once no two touch the same bytes.
struct CopyPart {
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;
};

// The runtime of one device: what it does besides its ops. The library of CUDA ops makes one for
// each device that is opened (cuda_ops.h) and its functions own what they need; whoever opens a
// device registers its runtime, once in each copy of this library. Several threads may use it. A
// null stream is the device's default one.
struct DeviceRuntime {
  int index = 0;  // of the device, among this machine's of its kind
  // The stream of the ops and copies of this process, but for replays of digested passes, which
  // have DigestMaker::pass_streams: whoever replays them orders these.
  CUstream_st* stream = nullptr;
  // Null when there is not enough. What was released is handed out again without asking the device,
  // to whoever wants nearly that much, so that no step allocates; work on it that was queued before
  // is done before on the same stream.
  std::function<void*(int64_t bytes)> allocate;
  std::function<void(void* memory)> release;
  std::function<int64_t()> available;  // bytes that allocate could still find
  // Memory of the host that copies to and from the device need not pass through other memory for.
  // `from` of a copy is there read some time after the copy was queued.
  std::function<void*(int64_t bytes)> pin;
  std::function<void(void* memory)> unpin;
  // Copies to or from the device, after all that the stream has queued; has read `from` when it
  // returns, unless that is pinned. `to` on the host is filled once `wait` returns.
  std::function<void(void* to, const void* from, int64_t bytes, CUstream_st* stream)> copy;
  // Queues one launch for all parts, kMostParts at most, which lie on the device.
  static constexpr size_t kMostParts = 16;
  std::function<void(std::span<const CopyPart> parts, CUstream_st* stream)> copy_parts;
  // Copies from the host to the device, and then a part that lies there, maybe into those bytes:
  // one launch where there are 28 KiB at most, else two copies. `from`, which is not pinned, has
  // been read when it returns.
  std::function<void(void* to, const void* from, int64_t bytes, const CopyPart& then,
                     CUstream_st* stream)>
      fill;
  // Returns when all of the stream's work is done. Throws Error when it failed, or with the first
  // bad index that an op met since the last call (see bad_index.h).
  std::function<void(CUstream_st* stream)> wait;
  std::function<DeviceSampler> sample;
  // For DeviceGraph. From the first of them to the second, what is queued on the stream is captured
  // instead of done; end_graph returns the graph, or null when it is not wanted.
  std::function<void(CUstream_st* stream)> begin_graph;
  std::function<void*(CUstream_st* stream, bool wanted)> end_graph;
  std::function<void(void* graph, CUstream_st* stream)> replay;
  std::function<void(void* graph)> forget;
  DigestMaker digests;
};
// From here on runtime_of finds it, in the place of any other of that device. Any thread may; what
// it replaces must not be in use.
void register_runtime(const DeviceRuntime& runtime);
void forget_runtimes();
// From here on `give_back` is asked before a device is said to have no memory left: it belongs to
// others of this process who keep more there than they use, as LibTorch does. The last one given
// counts, in each copy of this library; any thread that makes a tensor may call it.
void register_keeper(std::function<void(Device)> give_back);
// The runtime of a CUDA device. Throws Error when none is registered.
const DeviceRuntime& runtime_of(Device device);

// The stream on which ops run on that device; null on the CPU.
CUstream_st* stream_of(Device device);
// The bytes that a tensor of that size takes of the memory of `device`.
int64_t memory_for(int64_t bytes, Device device);
// Bytes that a CUDA device could still give. Throws Error when it was not opened.
int64_t device_memory_left(Device device);
// Copies as many bytes as both have, in the order of the device's stream; between two devices,
// after all that the one copied from has queued. Two CPU tensors, and one copied from a device,
// hold what they should on return; `from` can then be written again, unless it is pinned and `to`
// is on a device.
void copy(const TensorView& to, const TensorView& from);
// A copy in the memory of `device`.
Tensor copy_on(Device device, const TensorView& from);
// Returns when all that was queued is done. Throws Error as DeviceRuntime::wait does; of the CPU,
// never.
void wait_for(Device device);

}  // namespace lockstep
