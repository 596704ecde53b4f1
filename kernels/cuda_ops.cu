#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"

namespace lockstep {
namespace {

// Null when the device has not that much left: Tensor says so in a sentence. Other trouble throws.
void* allocate(int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, static_cast<size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // else the next launch would report this
    return nullptr;
  }
  cuda_check(status, "memory");
  return memory;
}

// Called by destructors, also after the driver has gone: there is nobody to tell.
void release(void* memory) { cudaFree(memory); }

}  // namespace

extern "C" const Ops* lockstep_cuda_ops(DeviceMemory* memory) {
  static const Ops ops = {.rms_norm = rms_norm_cuda};
  *memory = {allocate, release};
  return &ops;
}

}  // namespace lockstep
