#pragma once

#include <memory>

#include "kernels/base/check.h"
#include "kernels/base/sample.h"
#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// An array that owns its memory, on the CPU or a CUDA device, 64-byte aligned at least. Movable,
// not copyable. Fresh memory is not initialised.
class Tensor {
 public:
  Tensor() = default;
  // Throws Error when the device has not that much memory, or this process has no such device.
  Tensor(const Shape& shape, DType dtype, Device device = Device::cpu);
  // On the CPU, where a CUDA device copies to without a detour: for what every pass copies. Takes
  // long to make.
  static Tensor pinned(const Shape& shape, DType dtype);

  const TensorView& view() const { return view_; }
  // A tensor in this one's memory, `offset` bytes from its begin, which it keeps from being freed.
  // Throws Error when this one has not that much.
  Tensor part(int64_t offset, const Shape& shape, DType dtype) const;
  operator const TensorView&() const { return view_; }
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

// The services of a device besides its ops. The library of CUDA ops sets its own when it is opened;
// until then asking for Device::cuda is an error. A null stream is the device's default one.
struct DeviceMemory {
  int number = 0;  // of the device, among this machine's of its kind
  // All that this process has its device do, it queues here.
  CUstream_st* stream = nullptr;
  // Null when there is not enough. What was released is handed out again without asking the device,
  // to whoever wants nearly that much, so that no step allocates; work on it that was queued before
  // is done before on the same stream.
  void* (*allocate)(int64_t bytes) = nullptr;
  void (*release)(void* memory) = nullptr;
  int64_t (*available)() = nullptr;  // bytes that allocate could still find
  // Memory of the host that copies to and from the device need not pass through other memory for.
  // `from` of a copy is there read some time after the copy was queued.
  void* (*pin)(int64_t bytes) = nullptr;
  void (*unpin)(void* memory) = nullptr;
  // Copies to or from the device, after all that the stream has queued; has read `from` when it
  // returns, unless that is pinned. `to` on the host is filled once `wait` returns.
  void (*copy)(void* to, const void* from, int64_t bytes, CUstream_st* stream) = nullptr;
  // Returns when all of the stream's work is done. Throws Error when it failed, or with the first
  // bad index that an op met since the last call (see bad_index.h).
  void (*wait)(CUstream_st* stream) = nullptr;
  DeviceSampler* sample = nullptr;
  // For DeviceGraph. From the first of them to the second, what is queued on the stream is kept
  // instead of done; end_graph returns the graph, or null when it is not wanted.
  void (*begin_graph)(CUstream_st* stream) = nullptr;
  void* (*end_graph)(CUstream_st* stream, bool wanted) = nullptr;
  void (*replay)(void* graph, CUstream_st* stream) = nullptr;
  void (*forget)(void* graph) = nullptr;
};
void set_cuda_memory(const DeviceMemory& memory);
// The services that were set. Throws Error when none were.
const DeviceMemory& cuda_memory();

// The stream on which ops run on that device; null on the CPU.
CUstream_st* stream_of(Device device);
// The bytes that a tensor of that size takes of the memory of `device`.
int64_t memory_for(int64_t bytes, Device device);
// Bytes that a CUDA device could still give. Throws Error when no library is loaded.
int64_t device_memory_left();
// Copies as many bytes as both have, in the order of the device's stream. Two CPU tensors, and one
// copied from a device, hold what they should on return; `from` can then be written again, unless
// it is pinned and `to` is on a device.
void copy(const TensorView& to, const TensorView& from);
// A copy in the memory of `device`.
Tensor copy_on(Device device, const TensorView& from);
// Returns when all that was queued is done. Throws Error as DeviceMemory::wait does; of the CPU,
// never.
void wait_for(Device device);

}  // namespace lockstep
