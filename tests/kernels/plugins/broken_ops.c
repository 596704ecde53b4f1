// Ops that break the contract of an output, one each, on fp32.
#include <stddef.h>
#include <stdio.h>

#include "kernels/lockstep_ops.h"

int32_t lockstep_ops_abi(void) { return LOCKSTEP_OPS_ABI; }

static float* floats(const DLTensor* t) { return (float*)((char*)t->data + t->byte_offset); }

static int64_t count(const DLTensor* t) {
  int64_t n = 1;
  for (int axis = 0; axis < t->ndim; ++axis) n *= t->shape[axis];
  return n;
}

// Leaves the last element out.
const char* lockstep_add(const LockstepCall* call, const DLTensor* out, const DLTensor* a,
                         const DLTensor* b) {
  (void)call;
  for (int64_t i = 0; i + 1 < count(out); ++i) floats(out)[i] = floats(a)[i] + floats(b)[i];
  return NULL;
}

// Writes one element too many.
const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor* out, const DLTensor* gate,
                              const DLTensor* up) {
  (void)call, (void)gate, (void)up;
  for (int64_t i = 0; i <= count(out); ++i) floats(out)[i] = 0;
  return NULL;
}

// Begins one element too early.
const char* lockstep_weighted_sum(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                                  const DLTensor* weights) {
  (void)call, (void)x, (void)weights;
  for (int64_t i = -1; i < count(out); ++i) floats(out)[i] = 0;
  return NULL;
}

const char* lockstep_argmax(const LockstepCall* call, const DLTensor* out, const DLTensor* logits) {
  (void)call, (void)out;
  static char sentence[64];
  snprintf(sentence, sizeof sentence, "it has no registers left on device %d:%d",
           (int)logits->device.device_type, (int)logits->device.device_id);
  return sentence;
}
