// Right for fp32 in the host's memory, and never asks whether that is where its tensors are.
#include <math.h>
#include <stddef.h>

#include "kernels/lockstep_ops.h"

int32_t lockstep_ops_abi(void) { return LOCKSTEP_OPS_ABI; }

static float* floats(const DLTensor* t) { return (float*)((char*)t->data + t->byte_offset); }

const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor* out, const DLTensor* gate,
                              const DLTensor* up) {
  (void)call;
  for (int64_t i = 0; i < out->shape[0] * out->shape[1]; ++i) {
    const float x = floats(gate)[i];
    floats(out)[i] = x / (1 + expf(-x)) * floats(up)[i];
  }
  return NULL;
}
