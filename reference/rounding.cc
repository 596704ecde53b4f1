// Rounding to a dtype is done on fp64 numbers by their spacing, 2^(e - p + 1) at exponent e, rather
// than by conversion: it is exact, it works for formats that LibTorch has not (tf32), and the value
// before the rounding stays at hand. On the CPU a kernel of our own goes over the numbers once:
// LibTorch's operators make a dozen tensors on the way.
//
// near_ties() is for kernels whose value before a rounding differs from the exact one by
// accumulation: within `most` of the border between two numbers the kernel may have either, with a
// chance of erfc(distance / (usual sqrt 2)) / 2, as of a normal error of deviation `usual`.
#include "reference/rounding.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/copysign.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/erfc.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/round.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/base/widest.h"

namespace lockstep {
namespace {

constexpr int64_t kOfThread = 1 << 16;  // numbers that are worth a thread

// 2^exponent, which is a normal number.
[[gnu::always_inline]] inline double power_of_two(int64_t exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// The steps of Grid::rounded() without a branch, for up to 51 bits: x over its spacing is below
// 2^51 then, and of what lies that near to 1.5 * 2^52 fp64 has every whole number and no other.
void round_each(const double* x, int64_t count, const Grid& grid, double* y) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity(), kWhole = 0x1.8p52;
  const double max = grid.max > 0 ? grid.max : kInfinity;
  const int64_t least = grid.least, below = grid.precision - 1;
  on_widest_vectors([&]() __attribute__((always_inline)) {
    for (int64_t i = 0; i < count; ++i) {
      const auto bits = std::bit_cast<uint64_t>(std::fabs(x[i]));
      const int64_t spacing = std::max(static_cast<int64_t>(bits >> 52) - 1023, least) - below;
      const double whole = (std::fabs(x[i]) * power_of_two(-spacing) + kWhole) - kWhole;
      const double size = whole * power_of_two(spacing);
      const double kept = size > max ? kInfinity : size;
      y[i] = std::fabs(x[i]) < kInfinity ? std::copysign(kept, x[i]) : x[i];
    }
  });
}

}  // namespace

Grid Grid::of(DType dtype) {
  const FloatFormat format = format_of(dtype);
  return {format.precision, format.min_exponent, format.max};
}

at::Tensor Grid::spacing(const at::Tensor& x) const {
  // x = m 2^e with m in [1/2, 1), so that its leading bit is worth 2^(e - 1).
  const at::Tensor exponent = std::get<1>(at::frexp(x)).to(at::kDouble) - 1;
  // Subnormals have the spacing of the least normal number.
  return at::exp2(exponent.clamp_min(least) - (precision - 1));
}

at::Tensor Grid::rounded(const at::Tensor& x) const {
  // The spacings of fp64's own least numbers are none of its normal ones.
  if (x.is_cpu() && precision < 52 && least - precision > -1022) {
    const at::Tensor dense = x.is_non_overlapping_and_dense() ? x : x.contiguous();
    const at::Tensor y = at::empty_like(dense);
    const auto* const from = dense.const_data_ptr<double>();
    auto* const to = y.mutable_data_ptr<double>();
    at::parallel_for(0, dense.numel(), kOfThread, [&](int64_t begin, int64_t end) {
      round_each(from + begin, end - begin, *this, to + begin);
    });
    return y;
  }
  const at::Tensor step = spacing(x);
  at::Tensor y = at::round(x / step) * step;  // halves to even
  if (max > 0) {
    const double infinity = std::numeric_limits<double>::infinity();
    y = at::where(y.abs() > max, at::copysign(at::full_like(y, infinity), y), y);
  }
  return at::where(at::isfinite(x), y, x);
}

void near_ties(const at::Tensor& z, const at::Tensor& most, const at::Tensor& usual,
               const Grid& grid, at::Tensor& step, at::Tensor& chance) {
  const at::Tensor apart = grid.spacing(z), at = z.abs() / apart;
  // From the border between the two numbers around z.
  const at::Tensor distance = (at - at.floor() - 0.5).abs() * apart;
  const at::Tensor near = distance <= most, none = at::zeros({}, z.options());
  const at::Tensor deviations = distance / usual.clamp_min(std::numeric_limits<double>::min());
  step = at::where(near, apart, none);
  chance = at::where(near, 0.5 * at::erfc(deviations / std::sqrt(2.0)), none);
}

at::Tensor Grid::halves(const at::Tensor& x) const {
  const at::Tensor apart = spacing(x), at = x.abs() / apart;
  return at::where(at - at.floor() == 0.5, apart, at::zeros({}, x.options()));
}

}  // namespace lockstep
