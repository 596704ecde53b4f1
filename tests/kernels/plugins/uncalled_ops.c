// A user's kernel that a model without experts does not call: a choice of them, which would end the
// process.
#include <stdlib.h>

#include "kernels/lockstep_ops.h"

int32_t lockstep_ops_abi(void) { return LOCKSTEP_OPS_ABI; }

const char* lockstep_top_k(const LockstepCall* call, const DLTensor* out, const DLTensor* logits) {
  (void)call, (void)out, (void)logits;
  abort();
}
