// A user's CUDA kernel that writes where no memory is.
#include "kernels/lockstep_ops.h"

extern "C" int32_t lockstep_ops_abi(void) { return LOCKSTEP_OPS_ABI; }

namespace {

__global__ void write_to(volatile float* place) { *place = 1; }

}  // namespace

extern "C" const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor*, const DLTensor*,
                                         const DLTensor*) {
  write_to<<<1, 1, 0, static_cast<cudaStream_t>(call->stream)>>>(nullptr);
  return nullptr;
}
