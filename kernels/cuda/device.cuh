// The part of CUDA that all kernels share: checked calls, launches (with programmatic dependent
// launch), objects of a device, loops over items, conversions, reductions of a warp. A function
// without __device__ runs on the host's calling thread, for the device that is current there.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <mutex>

#include "kernels/base/bad_index.h"
#include "kernels/base/check.h"
#include "kernels/base/dtype.h"

namespace lockstep {

constexpr int kWarp = 32;

// Throws Error, with the name of the call or op and CUDA's own words, unless `status` is success.
// Every call and every launch is checked by it.
inline void cuda_check(cudaError_t status, const char* what) {
  check(status == cudaSuccess, "CUDA error in {}: {} ({})", what, cudaGetErrorString(status),
        cudaGetErrorName(status));
}

// The grid of a kernel that strides over its items: blocks of `threads`, no more than fill a device
// a few times over.
inline unsigned blocks_for(int64_t items, int threads) {
  constexpr int64_t kMost = 4096;
  return std::min((items + threads - 1) / threads, kMost);
}

inline int current_device() {
  int device = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

// An attribute of the current device.
inline int number_of_device(cudaDeviceAttr which, const char* what) {
  int number = 0;
  cuda_check(cudaDeviceGetAttribute(&number, which, current_device()), what);
  return number;
}

constexpr size_t kMaxDevices = 64;  // of a machine

// The current device of this thread, as an index of a table with an entry for each device.
inline size_t current_index() {
  const size_t index = current_device();
  check(index < kMaxDevices, "at most {} CUDA devices can be used, found number {}", kMaxDevices,
        index);
  return index;
}

// Makes a device the current one of this thread. Every op comes here, so that it asks first: that
// costs a fraction of cudaSetDevice. Nothing is remembered, since others, LibTorch among them, may
// change it too.
inline void use_device(int index) {
  if (current_device() != index) cuda_check(cudaSetDevice(index), "cudaSetDevice");
}

// The object of a type that belongs to the current device. It is made when it is first asked for,
// and never destroyed, because the driver may have gone before.
template <typename T>
T& of_current_device() {
  static std::array<std::once_flag, kMaxDevices> made;
  static std::array<T*, kMaxDevices> objects = {};
  const size_t index = current_index();
  std::call_once(made[index], [&] { objects[index] = new T; });
  return *objects[index];
}

// Ten times the compute capability of the current device: 90 for Hopper.
struct ComputeCapability {
  int value = 10 * number_of_device(cudaDevAttrComputeCapabilityMajor, "cudaDeviceGetAttribute") +
              number_of_device(cudaDevAttrComputeCapabilityMinor, "cudaDeviceGetAttribute");
};
inline int compute_capability() { return of_current_device<ComputeCapability>().value; }

// Allows a kernel that much dynamic shared memory: more than 48 KiB must be requested, once on each
// device.
template <auto kKernel>
struct GrantedShared {
  unsigned bytes = 0;
};
template <auto kKernel>
void grant_shared(unsigned bytes) {
  auto& granted = of_current_device<GrantedShared<kKernel>>();
  if (granted.bytes >= bytes) return;
  cuda_check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "cudaFuncSetAttribute(MaxDynamicSharedMemorySize)");
  granted.bytes = bytes;
}

// The shape of a kernel's blocks.
struct BlockShape {
  BlockShape(unsigned thread_count, unsigned bytes = 0, unsigned blocks = 1)
      : threads(thread_count), shared(bytes), cluster(blocks) {}
  unsigned threads;
  unsigned shared;   // bytes of dynamic shared memory
  unsigned cluster;  // blocks of a cluster, along z; more than 1 from Hopper on
};

// Launches a kernel with programmatic dependent launch (PDL): its blocks are set up while the
// kernel before it on the stream still runs, which hides most of the gap between the two. Each of
// its threads must call pdl_wait().
template <typename... Parameters, typename... Arguments>
void launch_pdl(const char* op, CUstream_st* stream, dim3 blocks, BlockShape block,
                void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {1, 1, block.cluster};
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = block.threads;
  config.dynamicSmemBytes = block.shared;
  config.stream = stream;
  config.attrs = attributes;
  // PDL and clusters exist from Hopper on.
  config.numAttrs = compute_capability() < 90 ? 0 : block.cluster > 1 ? 2 : 1;
  const cudaError_t status =
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  cuda_check(status, op);
}

// Lets the next kernel on the stream be set up.
__device__ inline void pdl_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Waits until the kernels queued before are done and their writes are visible. Before that a kernel
// may read only what no kernel writes: weights, and the indices of the pass.
__device__ inline void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// The item that this thread begins with in a loop over those of a one-dimensional grid, and how far
// it is to its next one.
__device__ inline int64_t first_item() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline int64_t item_stride() { return int64_t{gridDim.x} * blockDim.x; }

__device__ inline void pdl_launch_dependents_and_wait() {
  pdl_launch_dependents();
  pdl_wait();
}

// Calls body with a null pointer of the device's element type of a dtype that was checked.
template <typename Body>
void dispatch_cuda(DType dtype, Body&& body) {
  if (dtype == DType::f32)
    body(static_cast<float*>(nullptr));
  else if (dtype == DType::f16)
    body(static_cast<__half*>(nullptr));
  else
    body(static_cast<__nv_bfloat16*>(nullptr));
}

// The report in which ops on the current device leave the first bad index that they meet;
// DeviceRuntime::wait reads it.
BadIndex* bad_index_report();

__device__ inline void report(BadIndex* to, BadIndex::Of of, int64_t limit, int64_t found,
                              int64_t at) {
  if (atomicCAS(reinterpret_cast<int*>(&to->of), 0, static_cast<int>(of)) != 0) return;
  to->limit = limit;
  to->found = found;
  to->at = at;
}

// 16 bytes of elements, which one instruction reads or writes; its address is a multiple of 16.
template <typename T>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(T);
  T e[kSize];
};

// Whether rows of that many bytes at these addresses can be read 16 bytes at a time.
template <typename... Elements>
bool aligned_16(int64_t row_bytes, const Elements*... rows) {
  return row_bytes % 16 == 0 && ((reinterpret_cast<uintptr_t>(rows) % 16 == 0) && ...);
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

// The sum over the warp, for all its lanes, in an order that is always the same.
__device__ inline float warp_sum(float x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

// A number at its place in a row.
struct Place {
  float value;
  int64_t index;
};

// Whether `a` is larger than `b`, or stands before it where they are alike; a NaN is larger than
// any number.
__device__ inline bool before(const Place& a, const Place& b) {
  const bool a_nan = isnan(a.value), b_nan = isnan(b.value);
  if (a_nan != b_nan) return a_nan;
  return a_nan || a.value == b.value ? a.index < b.index : a.value > b.value;
}

// The first of the warp's places, for all its lanes.
__device__ inline Place warp_first(Place best) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Place other = {__shfl_xor_sync(~0u, best.value, offset),
                         __shfl_xor_sync(~0u, best.index, offset)};
    if (before(other, best)) best = other;
  }
  return best;
}

}  // namespace lockstep
