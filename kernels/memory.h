#pragma once

#include <memory>

#include "kernels/tensor.h"

namespace lockstep {

// An array that owns its memory, on the CPU or a CUDA device, 64-byte aligned at least. Movable,
// not copyable. Fresh memory is not initialised.
class Tensor {
 public:
  Tensor() = default;
  // Throws Error when the device has not that much memory, or this process has no such device.
  Tensor(const Shape& shape, DType dtype, Device device = Device::cpu);

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }
  template <typename T>
  T* as() const {
    return view_.as<T>();
  }

 private:
  std::shared_ptr<void> memory_;
  TensorView view_;
};

// A CPU tensor that holds a copy of `values`.
template <typename T>
Tensor tensor_of(std::span<const T> values, const Shape& shape, DType dtype) {
  Tensor tensor(shape, dtype);
  std::copy(values.begin(), values.end(), tensor.as<T>());
  return tensor;
}

// Where device memory comes from. The library of CUDA ops puts its own here when it is opened;
// until then asking for Device::cuda is an error.
struct DeviceMemory {
  void* (*allocate)(int64_t bytes) = nullptr;  // null when there is not enough
  void (*release)(void* memory) = nullptr;
};
void set_cuda_memory(const DeviceMemory& memory);

}  // namespace lockstep
