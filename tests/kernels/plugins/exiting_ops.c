// Ops that end the process as if all were well, one way each.
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#include "kernels/lockstep_ops.h"

int32_t lockstep_ops_abi(void) { return LOCKSTEP_OPS_ABI; }

const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor* out, const DLTensor* gate,
                              const DLTensor* up) {
  (void)call, (void)out, (void)gate, (void)up;
  exit(0);
}

const char* lockstep_add(const LockstepCall* call, const DLTensor* out, const DLTensor* a,
                         const DLTensor* b) {
  (void)call, (void)out, (void)a, (void)b;
  quick_exit(0);
}

// A thread of its own does it.
static void* end(void* unused) { exit(unused == NULL ? 0 : 1); }

const char* lockstep_argmax(const LockstepCall* call, const DLTensor* out, const DLTensor* logits) {
  (void)call, (void)out, (void)logits;
  pthread_t thread;
  if (pthread_create(&thread, NULL, end, NULL) != 0) return "there is no thread left";
  pthread_join(thread, NULL);
  return NULL;
}
