// A library whose only function is almost named as a fused op.
#include <stddef.h>

#include "kernels/lockstep_ops.h"

int32_t lockstep_ops_abi(void) { return LOCKSTEP_OPS_ABI; }

const char* lockstep_gate_up_silu_mul(void) { return NULL; }
