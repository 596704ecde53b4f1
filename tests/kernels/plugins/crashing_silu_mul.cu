// A user's CUDA kernel that writes where no memory is, in layer 1; in layer 0 it is right.
#include <cuda_bf16.h>

#include "kernels/lockstep_ops.h"

extern "C" int32_t lockstep_ops_abi(void) { return LOCKSTEP_OPS_ABI; }

namespace {

__global__ void silu_mul(__nv_bfloat16* out, const __nv_bfloat16* gate, const __nv_bfloat16* up,
                         int64_t count) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= count) return;
  const float g = __bfloat162float(gate[i]);
  out[i] = __float2bfloat16_rn(g / (1 + expf(-g)) * __bfloat162float(up[i]));
}

template <typename T>
T* first(const DLTensor* tensor) {
  return reinterpret_cast<T*>(static_cast<char*>(tensor->data) + tensor->byte_offset);
}

}  // namespace

extern "C" const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor* out,
                                         const DLTensor* gate, const DLTensor* up) {
  const int64_t count = out->shape[0] * out->shape[1];
  auto* there = call->layer == 1 ? nullptr : first<__nv_bfloat16>(out);
  silu_mul<<<static_cast<unsigned>((count + 255) / 256), 256, 0,
             static_cast<cudaStream_t>(call->stream)>>>(
      there, first<const __nv_bfloat16>(gate), first<const __nv_bfloat16>(up), count);
  return nullptr;
}
