// A library whose only function has a name that no op has.
#include <stddef.h>

#include "kernels/lockstep_ops.h"

int32_t lockstep_ops_abi(void) { return LOCKSTEP_OPS_ABI; }

const char* lockstep_rmsnorm(void) { return NULL; }
