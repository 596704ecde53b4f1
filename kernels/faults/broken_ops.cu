#include "kernels/cuda/device.cuh"
#include "kernels/cuda/on_device.cuh"
#include "kernels/faults/broken_ops.h"

namespace lockstep {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void normalise_without_barrier(T* out, const T* x, const T* weight, int64_t width,
                                          float eps) {
  __shared__ float warps[kThreads / kWarp];
  const int64_t row = int64_t{blockIdx.x} * width;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float v = widen(x[row + i]);
    squares += v * v;
  }
  squares = warp_sum(squares);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = squares;
  // Here __syncthreads() is missing: a warp that is ahead reads what the block before left.
  float sum = 0;
  for (const float warp : warps) sum += warp;
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(width) + eps);
  for (int64_t i = threadIdx.x; i < width; i += kThreads)
    out[row + i] = narrow<T>(widen(x[row + i]) * scale * widen(weight[i]));
}

void rms_norm_without_barrier(const OpContext& context, TensorView out, TensorView x,
                              TensorView weight, float eps) {
  const int64_t width = x.shape.last(), rows = x.count() / width;
  if (rows == 0) return;
  dispatch_cuda(x.dtype, [&]<typename T>(T*) {
    normalise_without_barrier<T><<<static_cast<unsigned>(rows), kThreads, 0, context.stream>>>(
        out.as<T>(), x.as<const T>(), weight.as<const T>(), width, eps);
  });
  cuda_check(cudaGetLastError(), "the launch of a broken rms_norm");
}

// One thread an element, and none for the columns from `written` on.
template <typename T>
__global__ void multiply_but_a_tile(T* out, const T* x, const T* weight, int64_t rows, int64_t n,
                                    int64_t k, int64_t written) {
  const int64_t stride = item_stride();
  for (int64_t i = first_item(); i < rows * written; i += stride) {
    const int64_t row = i / written, column = i % written;
    float sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += widen(x[row * k + j]) * widen(weight[column * k + j]);
    out[row * n + column] = narrow<T>(sum);
  }
}

void matmul_but_a_tile(const OpContext& context, TensorView out, TensorView x, WeightView of,
                       TensorView) {
  const TensorView& weight = plain_codes("matmul", of);
  const int64_t n = weight.rows(), written = n < 128 ? n - n / 2 : n - 64;
  if (x.rows() == 0) return;
  dispatch_cuda(x.dtype, [&]<typename T>(T*) {
    multiply_but_a_tile<T>
        <<<blocks_for(x.rows() * written, kThreads), kThreads, 0, context.stream>>>(
            out.as<T>(), x.as<const T>(), weight.as<const T>(), x.rows(), n, x.shape[1], written);
  });
  cuda_check(cudaGetLastError(), "the launch of a broken matmul");
}

// One block a token.
template <typename T>
__global__ void write_with_32_bits(T* cache_k, T* cache_v, const T* k, const T* v,
                                   const int64_t* slots, int row) {
  const int offset = static_cast<unsigned>(slots[blockIdx.x]) * row;
  if (offset < 0) return;  // as a padded row has it, and as a product that wrapped
  for (int i = threadIdx.x; i < row; i += kThreads) {
    cache_k[offset + i] = k[blockIdx.x * row + i];
    cache_v[offset + i] = v[blockIdx.x * row + i];
  }
}

void kv_write_with_32_bits(const OpContext& context, KvCache cache, TensorView k, TensorView v,
                           TensorView slots) {
  if (slots.rows() == 0) return;
  dispatch_cuda(k.dtype, [&]<typename T>(T*) {
    write_with_32_bits<T><<<static_cast<unsigned>(slots.rows()), kThreads, 0, context.stream>>>(
        cache.k.as<T>(), cache.v.as<T>(), k.as<const T>(), v.as<const T>(),
        slots.as<const int64_t>(), k.row_size());
  });
  cuda_check(cudaGetLastError(), "the launch of a broken kv_write");
}

}  // namespace

extern "C" const Ops* lockstep_cuda_broken_ops() {
  static const Ops ops = {.rms_norm = OnDevice<rms_norm_without_barrier>::call,
                          .matmul = OnDevice<matmul_but_a_tile>::call,
                          .kv_write = OnDevice<kv_write_with_32_bits>::call};
  return &ops;
}

}  // namespace lockstep
