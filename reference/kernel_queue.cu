#include "kernels/base/check.h"
#include "reference/kernel_queue.h"

namespace lockstep {
namespace {

void check_cuda(const char* doing, cudaError_t status) {
  check(status == cudaSuccess, "CUDA error in {} of the reference: {}", doing,
        cudaGetErrorString(status));
}

}  // namespace

KernelQueue new_queue(int gpu) {
  cudaStream_t stream = nullptr;
  check_cuda("making a stream", cudaSetDevice(gpu));
  check_cuda("making a stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return {gpu, stream};
}

int64_t free_memory(int gpu) {
  size_t free = 0, all = 0;
  check_cuda("asking for free memory", cudaSetDevice(gpu));
  check_cuda("asking for free memory", cudaMemGetInfo(&free, &all));
  return static_cast<int64_t>(free);
}

}  // namespace lockstep
