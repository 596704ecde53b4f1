#include "kernels/memory.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/check.h"

namespace lockstep {
namespace {

constexpr size_t kAlignment = 64;  // a cache line, and the widest vector register

DeviceMemory cuda_memory;

std::shared_ptr<void> allocate(int64_t bytes, Device device) {
  // Room for one more line: kernels may then read whole vectors at the end of a tensor.
  const size_t size = (static_cast<size_t>(bytes) / kAlignment + 2) * kAlignment;
  if (device == Device::cpu) return {std::aligned_alloc(kAlignment, size), &std::free};
  check(cuda_memory.allocate != nullptr,
        "memory on a CUDA device was wanted, but no CUDA library is loaded: use --device cpu");
  void* memory = cuda_memory.allocate(static_cast<int64_t>(size));
  if (memory == nullptr) return nullptr;  // which has nothing to release
  return {memory, cuda_memory.release};
}

}  // namespace

void set_cuda_memory(const DeviceMemory& memory) { cuda_memory = memory; }

Tensor::Tensor(const Shape& shape, DType dtype, Device device)
    : view_{nullptr, dtype, device, shape} {
  for (int64_t extent : shape.extents())
    check(extent >= 0, "a tensor of shape {} was wanted: extents cannot be negative", shape.text());
  memory_ = allocate(view_.bytes(), device);
  check(
      memory_ != nullptr,
      "{} bytes for a tensor {} were wanted and the {} has not that much memory left{}: use fewer "
      "or smaller --pages, or a shorter prompt",
      view_.bytes(), shape.text(), device == Device::cpu ? "host" : "device",
      device == Device::cpu ? "" : fmt::format(", but {} bytes", cuda_memory.available()));
  view_.data = memory_.get();
}

}  // namespace lockstep
