// A user's fused kernel with a bug: silu is taken of the product that it shall be multiplied by.
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kernels/lockstep_ops.h"

int32_t lockstep_ops_abi(void) { return LOCKSTEP_OPS_ABI; }

static float value_of(uint16_t bf16) {
  const uint32_t bits = (uint32_t)bf16 << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static double product(const DLTensor* x, int64_t row, const DLTensor* weight, int64_t n) {
  const int64_t width = weight->shape[1];
  double sum = 0;
  for (int64_t i = 0; i < width; ++i)
    sum += (double)value_of(((const uint16_t*)x->data)[row * width + i]) *
           value_of(((const uint16_t*)weight->data)[n * width + i]);
  return sum;
}

const char* lockstep_gate_up_silu(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                                  const DLTensor* gate_weight, const DLTensor* up_weight) {
  (void)call;
  if (x->device.device_type != kDLCPU) return "it runs on the CPU: leave out --device cuda";
  if (x->dtype.code != kDLBfloat) return "it knows bf16 only";
  const int64_t width = gate_weight->shape[0];
  for (int64_t row = 0; row < x->shape[0]; ++row)
    for (int64_t n = 0; n < width; ++n) {
      const double gate = product(x, row, up_weight, n), up = product(x, row, gate_weight, n);
      const float value = (float)(gate / (1 + exp(-gate)) * up);
      uint32_t bits;
      memcpy(&bits, &value, sizeof bits);
      bits += 0x7fff + ((bits >> 16) & 1);
      ((uint16_t*)out->data)[row * width + n] = (uint16_t)(bits >> 16);
    }
  return NULL;
}
