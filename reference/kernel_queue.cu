#include "kernels/base/check.h"
#include "reference/kernel_queue.h"
#include "src/judge/no_memory.h"

namespace lockstep {
namespace {

// The last error is read where there is one, or the next launch would find it.
void check_cuda(const char* doing, cudaError_t status) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  if (status == cudaErrorMemoryAllocation) fail_for_memory("some bytes");
  fail("CUDA error in {} of the reference: {}", doing, cudaGetErrorString(status));
}

// The device is the current one for as long as this lives.
class OnDevice {
 public:
  explicit OnDevice(int gpu) {
    check_cuda("asking for the device", cudaGetDevice(&before_));
    check_cuda("choosing a device", cudaSetDevice(gpu));
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

struct Memory {
  size_t free = 0, total = 0;
};

Memory memory_of(int gpu) {
  const OnDevice on(gpu);
  Memory memory;
  check_cuda("asking for its memory", cudaMemGetInfo(&memory.free, &memory.total));
  return memory;
}

}  // namespace

void* new_stream(int gpu) {
  const OnDevice on(gpu);
  cudaStream_t stream = nullptr;
  check_cuda("making a stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

int64_t free_memory(int gpu) { return static_cast<int64_t>(memory_of(gpu).free); }

int64_t total_memory(int gpu) { return static_cast<int64_t>(memory_of(gpu).total); }

}  // namespace lockstep
