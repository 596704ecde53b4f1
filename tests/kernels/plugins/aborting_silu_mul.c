// Right in layers 0 and 1, on fp32; ends the process in layer 2, as a fault of a kernel may.
#include <math.h>
#include <stdlib.h>

#include "kernels/lockstep_ops.h"

int32_t lockstep_ops_abi(void) { return LOCKSTEP_OPS_ABI; }

static float* floats(const DLTensor* t) { return (float*)((char*)t->data + t->byte_offset); }

const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor* out, const DLTensor* gate,
                              const DLTensor* up) {
  if (call->layer == 2) abort();
  if (out->device.device_type != kDLCPU) return "it is for the CPU";
  for (int64_t i = 0; i < out->shape[0] * out->shape[1]; ++i) {
    const float x = floats(gate)[i];
    floats(out)[i] = x / (1 + expf(-x)) * floats(up)[i];
  }
  return NULL;
}
