// A warp has an output: its lanes read neighbouring elements of the weight, as many at a time as 16
// bytes hold, and each adds up what it has read in the order of the terms. Sums are joined across
// lanes in one order. Products and sums round by themselves: this file is compiled without
// multiply-adds that round once, which a compiler might choose for some numbers of rows alone.
#include "kernels/base/check.h"
#include "reference/few_rows_kernels.h"

namespace lockstep {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr unsigned kAll = 0xffffffff;

// Elements of a weight by their bits.
struct Fp32 {
  float x;
  __device__ double wide() const { return x; }
};
struct Fp16 {
  uint16_t bits;
  __device__ double wide() const {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
};
struct Bf16 {
  uint16_t bits;
  __device__ double wide() const { return __int_as_float(int{bits} << 16); }
};

template <typename W, int kAtOnce>
struct alignas(sizeof(W) * kAtOnce) Some {
  W values[kAtOnce];
};

__device__ double sum_of_lanes(double x) {
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(kAll, x, lane);
  return x;
}

// kRows: p.rows or more, of which those past the last one are the last one again.
template <typename W, int kAtOnce, int kRows>
__global__ void __launch_bounds__(kThreads) few_rows_kernel(FewRows p) {
  const int64_t output = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (output >= p.outputs) return;
  const int lane = threadIdx.x % 32;
  const W* const w = static_cast<const W*>(p.w) + output * p.terms;
  double sums[kRows] = {}, sizes[kRows] = {};
  for (int64_t first = lane * kAtOnce; first < p.terms; first += 32 * kAtOnce) {
    const auto some = *reinterpret_cast<const Some<W, kAtOnce>*>(w + first);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const double* const x = p.x + min(int64_t{row}, p.rows - 1) * p.terms + first;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const double product = x[i] * some.values[i].wide();
        sums[row] += product, sizes[row] += fabs(product);
      }
    }
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const double sum = sum_of_lanes(sums[row]), size = sum_of_lanes(sizes[row]);
    if (lane != 0 || row >= p.rows) continue;
    p.y[row * p.outputs + output] = sum;
    if (p.sizes) p.sizes[row * p.outputs + output] = size;
  }
}

template <typename W>
void launch(cudaStream_t stream, const FewRows& p) {
  constexpr int kAtOnce = 16 / sizeof(W);
  static_assert(kFewRowsTerms % kAtOnce == 0);
  const auto blocks = static_cast<unsigned>((p.outputs + kWarps - 1) / kWarps);
  if (p.rows <= 1)
    few_rows_kernel<W, kAtOnce, 1><<<blocks, kThreads, 0, stream>>>(p);
  else if (p.rows <= 2)
    few_rows_kernel<W, kAtOnce, 2><<<blocks, kThreads, 0, stream>>>(p);
  else if (p.rows <= 4)
    few_rows_kernel<W, kAtOnce, 4><<<blocks, kThreads, 0, stream>>>(p);
  else
    few_rows_kernel<W, kAtOnce, 8><<<blocks, kThreads, 0, stream>>>(p);
}

void check_cuda(cudaError_t status) {
  check(status == cudaSuccess, "CUDA error in products of few rows of the reference: {}",
        cudaGetErrorString(status));
}

}  // namespace

bool has_few_rows_kernels() { return true; }

void multiply_few_rows(const KernelQueue& queue, const FewRows& product) {
  static_assert(kMostFewRows == 8);
  check_cuda(cudaSetDevice(queue.gpu));
  const auto stream = static_cast<cudaStream_t>(queue.stream);
  if (product.dtype == DType::bf16)
    launch<Bf16>(stream, product);
  else if (product.dtype == DType::f16)
    launch<Fp16>(stream, product);
  else
    launch<Fp32>(stream, product);
  check_cuda(cudaGetLastError());
}

}  // namespace lockstep
