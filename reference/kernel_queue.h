// Where a kernel of the reference is queued, and what else it asks of CUDA's runtime.
#pragma once

#include <cstdint>

namespace lockstep {

struct KernelQueue {
  int gpu = 0;
  void* stream = nullptr;  // CUDA's handle; null: the device's own
};

// The handle of a new stream, for which no other waits. Only where has_attention_kernels(). Throws
// NoMemory where the device has none left.
void* new_stream(int gpu);
// The bytes that nobody has of the device's memory, and all that it has. Likewise.
int64_t free_memory(int gpu);
int64_t total_memory(int gpu);

}  // namespace lockstep
