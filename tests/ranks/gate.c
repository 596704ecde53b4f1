// A user's op on fp32 that stands still: at its load (GATE_AT=load), in an op of every rank (ops),
// or of the one that comes first (op). Who stands says so by a file GATE.PID, and goes on never.
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/lockstep_ops.h"

static void make(const char* name, int flags, int* made) {
  const int file = open(name, O_CREAT | O_WRONLY | flags, 0600);
  *made = file >= 0;
  if (file >= 0) close(file);
}

static void stand(void) {
  char name[4096];
  int made = 0;
  snprintf(name, sizeof name, "%s.%d", getenv("GATE"), (int)getpid());
  make(name, 0, &made);
  for (;;) usleep(10000);
}

static int stands_at(const char* where) {
  const char* at = getenv("GATE_AT");
  return at != NULL && strcmp(at, where) == 0;
}

__attribute__((constructor)) static void loaded(void) {
  if (stands_at("load")) stand();
}

int32_t lockstep_ops_abi(void) { return LOCKSTEP_OPS_ABI; }

static float* floats(const DLTensor* t) { return (float*)((char*)t->data + t->byte_offset); }

const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor* out, const DLTensor* gate,
                              const DLTensor* up) {
  (void)call;
  int first = 0;
  if (stands_at("ops")) stand();
  make(getenv("GATE"), O_EXCL, &first);
  if (first) stand();
  for (int64_t i = 0; i < out->shape[0] * out->shape[1]; ++i) {
    const float x = floats(gate)[i];
    floats(out)[i] = x / (1 + expf(-x)) * floats(up)[i];
  }
  return NULL;
}
