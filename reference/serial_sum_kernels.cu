// Every step says how it rounds, so that the compiler joins no product with a sum: the host does
// not either.
#include <cmath>

#include "kernels/base/check.h"
#include "reference/serial_sum_kernels.h"

namespace lockstep {
namespace {

constexpr int kThreads = 64;

__global__ void serial_squares_kernel(const double* x, int64_t count, int64_t width,
                                      double* errors) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= count) return;
  float sum = 0;
  double exact = 0;
#pragma unroll 8
  for (int64_t i = 0; i < width; ++i) {
    const double value = x[row * width + i], square = __dmul_rn(value, value);
    sum = __fadd_rn(sum, __double2float_rn(square));
    exact = __dadd_rn(exact, square);
  }
  const double off = fabs(double{sum} - exact);
  errors[row] = exact > 0 && isfinite(off) ? __dmul_rn(__ddiv_rn(off, exact), 0x1p24) : 0;
}

}  // namespace

bool has_serial_sum_kernels() { return true; }

void serial_squares(const KernelQueue& queue, const double* x, int64_t count, int64_t width,
                    double* errors) {
  const auto check_cuda = [](cudaError_t status) {
    check(status == cudaSuccess, "CUDA error in sums of squares of the reference: {}",
          cudaGetErrorString(status));
  };
  if (count == 0) return;
  check_cuda(cudaSetDevice(queue.gpu));
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  serial_squares_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(queue.stream)>>>(
      x, count, width, errors);
  check_cuda(cudaGetLastError());
}

}  // namespace lockstep
