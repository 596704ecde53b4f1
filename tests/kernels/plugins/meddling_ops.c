// Ops that reach beyond their output, one way each, on fp32.
#include <fenv.h>
#include <stddef.h>
#include <xmmintrin.h>

#include "kernels/lockstep_ops.h"

int32_t lockstep_ops_abi(void) { return LOCKSTEP_OPS_ABI; }

static float* floats(const DLTensor* t) { return (float*)((char*)t->data + t->byte_offset); }

static const char* copy(const DLTensor* out, const DLTensor* in) {
  int64_t n = 1;
  for (int axis = 0; axis < out->ndim; ++axis) n *= out->shape[axis];
  for (int64_t i = 0; i < n; ++i) floats(out)[i] = floats(in)[i];
  return NULL;
}

// Works in place too: turns the sign of all of its second input.
const char* lockstep_add(const LockstepCall* call, const DLTensor* out, const DLTensor* a,
                         const DLTensor* b) {
  (void)call;
  for (int64_t i = 0; i < b->shape[0] * b->shape[1]; ++i) floats(b)[i] = -floats(b)[i];
  return copy(out, a);
}

// Rounds otherwise from then on; of layer 1, subnormal numbers are zero.
const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor* out, const DLTensor* gate,
                              const DLTensor* up) {
  (void)up;
  if (call->layer == 1)
    _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
  else
    fesetround(FE_TOWARDZERO);
  return copy(out, gate);
}

// Raises flags alone, as any arithmetic may.
const char* lockstep_rms_norm(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                              const DLTensor* weight, float eps) {
  (void)call, (void)weight, (void)eps;
  feraiseexcept(FE_INEXACT | FE_OVERFLOW);
  return copy(out, x);
}

// Writes a key into the cache that it is to read.
const char* lockstep_paged_attention(const LockstepCall* call, const DLTensor* out,
                                     const DLTensor* q, const LockstepCache* cache,
                                     const LockstepBatch* batch, float scale, int64_t window) {
  (void)call, (void)batch, (void)scale, (void)window;
  floats(cache->v)[0] += 1;
  return copy(out, q);
}
