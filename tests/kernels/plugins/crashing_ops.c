// Ops that crash, one way each.
#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

#include "kernels/lockstep_ops.h"

int32_t lockstep_ops_abi(void) { return LOCKSTEP_OPS_ABI; }

// Values that the compiler cannot know.
static volatile float* volatile no_place = NULL;
static volatile int zero = 0;

const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor* out, const DLTensor* gate,
                              const DLTensor* up) {
  (void)call, (void)out, (void)gate, (void)up;
  *no_place = 1;
  return NULL;
}

const char* lockstep_add(const LockstepCall* call, const DLTensor* out, const DLTensor* a,
                         const DLTensor* b) {
  (void)call, (void)out, (void)a, (void)b;
  zero = 100 / zero;
  return NULL;
}

// The stack runs out.
static int deeper(int depth) {
  volatile char room[4096];
  room[0] = (char)depth;
  return depth < 0 ? 0 : deeper(depth + 1) + room[0];
}

const char* lockstep_rms_norm(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                              const DLTensor* weight, float eps) {
  (void)call, (void)out, (void)x, (void)weight, (void)eps;
  zero = deeper(zero);
  return NULL;
}

// A thread of its own does it.
static void* write_nowhere(void* unused) {
  *no_place = 1;
  return unused;
}

const char* lockstep_argmax(const LockstepCall* call, const DLTensor* out, const DLTensor* logits) {
  (void)call, (void)out, (void)logits;
  pthread_t thread;
  if (pthread_create(&thread, NULL, write_nowhere, NULL) != 0) return "there is no thread left";
  pthread_join(thread, NULL);
  return NULL;
}

// Does not crash, and does not end; writes 1 to its first input when it has begun.
const char* lockstep_weighted_sum(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                                  const DLTensor* weights) {
  (void)call, (void)out, (void)weights;
  *(volatile float*)((char*)x->data + x->byte_offset) = 1;
  for (;;) pause();
}
