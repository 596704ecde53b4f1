// A user's CUDA kernel that is right: fp32 inside, one rounding at the store.
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
  if (out->device.device_type != kDLCUDA) return "it runs on a CUDA device: add --device cuda";
  if (out->dtype.code != kDLBfloat) return "it knows bf16 only: add --dtype bf16";
  int64_t count = 1;
  for (int axis = 0; axis < out->ndim; ++axis) count *= out->shape[axis];
  const auto blocks = static_cast<unsigned>((count + 255) / 256);
  silu_mul<<<blocks, 256, 0, static_cast<cudaStream_t>(call->stream)>>>(
      first<__nv_bfloat16>(out), first<const __nv_bfloat16>(gate), first<const __nv_bfloat16>(up),
      count);
  const cudaError_t launched = cudaGetLastError();
  return launched == cudaSuccess ? nullptr : cudaGetErrorString(launched);
}
