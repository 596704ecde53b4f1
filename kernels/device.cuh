#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/check.h"

namespace lockstep {

// Throws Error, with what was tried and CUDA's own words, unless `status` is success. Every call
// and every launch is followed by it.
inline void cuda_check(cudaError_t status, const char* what) {
  check(status == cudaSuccess, "{} was wanted of the CUDA device, but it said: {} ({})", what,
        cudaGetErrorString(status), cudaGetErrorName(status));
}

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__half x) { return __half2float(x); }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

// Rounds to nearest even.
template <typename T>
__device__ T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline __half narrow<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

}  // namespace lockstep
