// The sums of some dims stay in registers while the keys pass by.
#include "reference/spread.h"

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>

#include "kernels/base/widest.h"

namespace lockstep {
namespace {

template <int64_t kDims>
[[gnu::always_inline]] inline void sum_dims(const double* p, const double* v, int64_t stride,
                                            int64_t keys, const double* o, double* spread) {
  double sums[kDims] = {}, of[kDims];
  for (int64_t d = 0; d < kDims; ++d) of[d] = o[d];
  for (int64_t key = 0; key < keys; ++key) {
    const double weight = p[key];
    const double* const row = v + key * stride;
#pragma omp simd
    for (int64_t d = 0; d < kDims; ++d) sums[d] += weight * std::fabs(row[d] - of[d]);
  }
  for (int64_t d = 0; d < kDims; ++d) spread[d] = sums[d];
}

}  // namespace

void sum_spread(const at::Tensor& p, const at::Tensor& v, const at::Tensor& o,
                const at::Tensor& spread) {
  const int64_t heads = p.size(0), group = p.size(1), keys = p.size(2), dim = v.size(2);
  const int64_t stride = v.stride(1);
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t g = 0; g < group; ++g) {
      const double* const weights =
          p.const_data_ptr<double>() + head * p.stride(0) + g * p.stride(1);
      const double* const values = v.const_data_ptr<double>() + head * v.stride(0);
      const double* const of = o.const_data_ptr<double>() + head * o.stride(0) + g * o.stride(1);
      double* const to =
          spread.mutable_data_ptr<double>() + head * spread.stride(0) + g * spread.stride(1);
      on_widest_vectors([&]() __attribute__((always_inline)) {
        int64_t d = 0;
        for (; d + 64 <= dim; d += 64)
          sum_dims<64>(weights, values + d, stride, keys, of + d, to + d);
        for (; d + 8 <= dim; d += 8) sum_dims<8>(weights, values + d, stride, keys, of + d, to + d);
        for (; d < dim; ++d) sum_dims<1>(weights, values + d, stride, keys, of + d, to + d);
      });
    }
}

}  // namespace lockstep
