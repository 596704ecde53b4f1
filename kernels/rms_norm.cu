#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"
#include "kernels/rms_norm.h"

namespace lockstep {
namespace {

constexpr int kThreads = 256;

// The sum over the block, for all its threads, in an order that depends on kThreads alone.
__device__ float block_sum(float x) {
  __shared__ float warps[kThreads / kWarp];
  x = warp_sum(x);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = x;
  __syncthreads();
  float sum = 0;
  for (const float warp : warps) sum += warp;
  return sum;
}

// One block a row.
template <typename T>
__global__ void normalise(T* out, const T* x, const T* weight, int64_t width, float eps) {
  after_the_kernel_before();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float v = widen(x[row + i]);
    squares += v * v;
  }
  const float scale = 1.0f / sqrtf(block_sum(squares) / static_cast<float>(width) + eps);
  for (int64_t i = threadIdx.x; i < width; i += kThreads)
    out[row + i] = narrow<T>(widen(x[row + i]) * scale * widen(weight[i]));
}

template <typename T>
void launch(const OpContext& context, const TensorView& out, const TensorView& x,
            const TensorView& weight, float eps) {
  const int64_t width = x.shape.last(), rows = x.count() / width;
  if (rows == 0) return;
  launch_early("rms_norm", context.stream, static_cast<unsigned>(rows), kThreads, normalise<T>,
               out.as<T>(), x.as<const T>(), weight.as<const T>(), width, eps);
}

}  // namespace

void rms_norm_cuda(const OpContext& context, TensorView out, TensorView x, TensorView weight,
                   float eps) {
  check_rms_norm(out, x, weight);
  check(x.device == Device::cuda,
        "rms_norm on the CUDA device wants its tensors there, found them "
        "on the CPU: copy them first");
  dispatch_cuda(x.dtype, [&]<typename T>(T*) { launch<T>(context, out, x, weight, eps); });
}

}  // namespace lockstep
