// A product of two numbers of 24 bits is exact in fp64, so that its size is the size of the
// product. Four outputs at a time keep as many sums in flight, and share what is read of x.
#include "reference/few_rows.h"

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>

#include "kernels/base/widest.h"

namespace lockstep {
namespace {

struct Sums {
  double product = 0, size = 0;
};

[[gnu::always_inline]] inline void dot(const float* w, const double* x, int64_t terms, Sums* sums) {
  double a = 0, b = 0;
#pragma omp simd reduction(+ : a, b)
  for (int64_t i = 0; i < terms; ++i) {
    const double product = double{w[i]} * x[i];
    a += product;
    b += std::fabs(product);
  }
  sums[0] = {a, b};
}

// The same of four rows of w.
[[gnu::always_inline]] inline void dots(const float* w, int64_t stride, const double* x,
                                        int64_t terms, Sums* sums) {
  const float *w1 = w + stride, *w2 = w1 + stride, *w3 = w2 + stride;
  double a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
#pragma omp simd reduction(+ : a0, a1, a2, a3, b0, b1, b2, b3)
  for (int64_t i = 0; i < terms; ++i) {
    const double p0 = double{w[i]} * x[i], p1 = double{w1[i]} * x[i];
    const double p2 = double{w2[i]} * x[i], p3 = double{w3[i]} * x[i];
    a0 += p0, a1 += p1, a2 += p2, a3 += p3;
    b0 += std::fabs(p0), b1 += std::fabs(p1), b2 += std::fabs(p2), b3 += std::fabs(p3);
  }
  sums[0] = {a0, b0}, sums[1] = {a1, b1}, sums[2] = {a2, b2}, sums[3] = {a3, b3};
}

}  // namespace

void multiply_few_rows(const at::Tensor& x, const at::Tensor& w, at::Tensor& y, at::Tensor* sizes) {
  const int64_t rows = x.size(0), outputs = w.size(0), terms = w.size(1);
  const int64_t stride = w.stride(0), x_stride = x.stride(0), y_stride = y.stride(0);
  const int64_t size_stride = sizes ? sizes->stride(0) : 0;
  const float* const weights = w.const_data_ptr<float>();
  const double* const all_x = x.const_data_ptr<double>();
  double* const all_y = y.mutable_data_ptr<double>();
  double* const all_sizes = sizes ? sizes->mutable_data_ptr<double>() : nullptr;
  on_widest_vectors([&]() __attribute__((always_inline)) {
    Sums sums[4];
    for (int64_t output = 0, count = 4; output < outputs; output += count) {
      if (output + count > outputs) count = 1;
      for (int64_t row = 0; row < rows; ++row) {
        const float* const with = weights + output * stride;
        const double* const from = all_x + row * x_stride;
        if (count == 4)
          dots(with, stride, from, terms, sums);
        else
          dot(with, from, terms, sums);
        for (int64_t i = 0; i < count; ++i) {
          all_y[row * y_stride + output + i] = sums[i].product;
          if (all_sizes) all_sizes[row * size_stride + output + i] = sums[i].size;
        }
      }
    }
  });
}

}  // namespace lockstep
