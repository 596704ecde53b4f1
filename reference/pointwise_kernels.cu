// A thread has an element. Each step rounds as it is written: this file is compiled without
// multiply-adds that round once.
#include <cmath>

#include "kernels/base/check.h"
#include "reference/pointwise_kernels.h"
#include "src/stats/roundoff.h"

namespace lockstep {
namespace {

constexpr int kThreads = 256;
constexpr double kUnit = kAccumulatorRoundoff;

__device__ double squared(double x) { return x * x; }

__device__ int64_t own_element() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

__global__ void __launch_bounds__(kThreads) rope_kernel(RopeRows p) {
  const int64_t i = own_element(), dim = 2 * p.pairs, row_size = p.heads * dim;
  if (i >= p.rows * row_size) return;
  const int64_t at = i % dim;
  const bool is_first = at < p.pairs;
  const int64_t pair = i / row_size * p.pairs + (is_first ? at : at - p.pairs);
  // The other of its pair has the sign that it has there.
  const double x1 = p.x[i], x2 = is_first ? -p.x[i + p.pairs] : p.x[i - p.pairs];
  const double c = p.cos[pair], s = p.sin[pair];
  p.want[i] = x1 * c + x2 * s;
  p.magnitude[i] = fabs(x1) + fabs(x2);
  p.angle[i] = p.error[pair];
  p.x1c_x2s[i] = hypot(x1 * c, x2 * s);
  p.turned[i] = fabs(x2 * c - x1 * s);
}

__global__ void __launch_bounds__(kThreads) silu_mul_kernel(SiluMulRows p) {
  const int64_t i = own_element();
  if (i >= p.count) return;
  const double gate = p.gate[i], up = p.up[i];
  p.want[i] = gate / (1 + exp(-gate)) * up;
  p.magnitude[i] = fabs(gate * up);
}

__global__ void __launch_bounds__(kThreads) norm_kernel(NormRows p) {
  const int64_t i = own_element();
  if (i >= p.rows * p.width) return;
  p.want[i] = p.x[i] / sqrt(p.mean_square[i / p.width] + p.eps) * p.weight[i % p.width];
}

__global__ void __launch_bounds__(kThreads) sum_errors_kernel(SumErrors p) {
  const int64_t i = own_element();
  if (i >= p.count) return;
  const double size = kUnit * p.magnitude[i];
  p.limit[i] = p.most * size;
  p.variance[i] = squared(p.walk * size);
}

__global__ void __launch_bounds__(kThreads) norm_errors_kernel(NormErrors p) {
  const int64_t i = own_element();
  if (i >= p.rows * p.width) return;
  const double size = kUnit * fabs(p.want[i]);
  p.limit[i] = p.most * size;
  p.variance[i] = squared((p.of_rows ? p.of_rows[i / p.width] : p.walk) * size);
}

__global__ void __launch_bounds__(kThreads) attention_errors_kernel(AttentionErrors p) {
  const int64_t i = own_element();
  if (i >= p.rows * p.heads * p.dim) return;
  const int64_t head = i / p.dim, row = head / p.heads;
  const double o = fabs(p.want[i]), score = p.score[head], n = p.terms[row];
  const double ds = sqrt(static_cast<double>(p.dim)) * kUnit * score + 4 * kUnit;
  const double es = (p.walk + 1) * kUnit * score + 4 * kUnit;
  const double shared =
      squared(es) * p.spread_squares[i] + squared((2 + score + p.logarithms[row]) * kUnit * o);
  // LibTorch divides by a number by multiplying with its inverse.
  const double sum =
      2 * kUnit * kUnit * n * (o * o * (1.0 / 9) + p.weighted_squares[i] * (1.0 / 6));
  p.limit[i] = 2 * kLambda * ds * p.spread[i] + kLambda * sqrt(n) * kUnit * p.magnitude[i];
  p.variance[i] = shared + sum;
  p.shared[i] = shared;
}

__global__ void __launch_bounds__(kThreads) rope_errors_kernel(RopeErrors p) {
  const int64_t i = own_element();
  if (i >= p.count) return;
  const double size = fabs(p.want[i]), turned = p.turned[i], angle = p.angle[i];
  const double most = 4 * angle * kUnit, square = 3 * squared(angle * kUnit);
  p.limit[i] = 4 * kUnit * p.magnitude[i] + (most * turned + squared(most) / 2 * size);
  p.variance[i] = squared(0.85 * kUnit * p.x1c_x2s[i]) +
                  (square * squared(turned) + 0.75 * squared(square * size));
}

__global__ void __launch_bounds__(kThreads) silu_mul_errors_kernel(SiluMulErrors p) {
  const int64_t i = own_element();
  if (i >= p.count) return;
  const double want = fabs(p.want[i]), of_sigmoid = p.magnitude[i], size = kUnit * want;
  const double underflow = 88 * kLeastNormal * fabs(p.factor[i]);
  p.limit[i] = 16 * size + kUnit * of_sigmoid + underflow;
  p.variance[i] = squared(3 * size) + squared(0.3 * kUnit * of_sigmoid) + squared(underflow);
  // NaN is neither.
  const double half = fabs(want - of_sigmoid / 2), whole = of_sigmoid - want;
  const double nearest = half <= whole || half != half ? half : whole;
  p.products[i] = nearest <= 9 * kUnit * of_sigmoid;
}

void check_cuda(cudaError_t status) {
  check(status == cudaSuccess, "CUDA error in pointwise ops of the reference: {}",
        cudaGetErrorString(status));
}

template <typename Rows>
void launch(void (*kernel)(Rows), int64_t count, const KernelQueue& queue, const Rows& rows) {
  if (count == 0) return;
  check_cuda(cudaSetDevice(queue.gpu));
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(queue.stream)>>>(rows);
  check_cuda(cudaGetLastError());
}

}  // namespace

bool has_pointwise_kernels() { return true; }

void make_rope(const KernelQueue& queue, const RopeRows& rows) {
  launch(rope_kernel, rows.rows * rows.heads * 2 * rows.pairs, queue, rows);
}
void make_silu_mul(const KernelQueue& queue, const SiluMulRows& rows) {
  launch(silu_mul_kernel, rows.count, queue, rows);
}
void make_norm(const KernelQueue& queue, const NormRows& rows) {
  launch(norm_kernel, rows.rows * rows.width, queue, rows);
}
void make_errors(const KernelQueue& queue, const SumErrors& errors) {
  launch(sum_errors_kernel, errors.count, queue, errors);
}
void make_errors(const KernelQueue& queue, const NormErrors& errors) {
  launch(norm_errors_kernel, errors.rows * errors.width, queue, errors);
}
void make_errors(const KernelQueue& queue, const AttentionErrors& errors) {
  launch(attention_errors_kernel, errors.rows * errors.heads * errors.dim, queue, errors);
}
void make_errors(const KernelQueue& queue, const RopeErrors& errors) {
  launch(rope_errors_kernel, errors.count, queue, errors);
}
void make_errors(const KernelQueue& queue, const SiluMulErrors& errors) {
  launch(silu_mul_errors_kernel, errors.count, queue, errors);
}

}  // namespace lockstep
