// Rounding to a dtype is done on fp64 numbers by their spacing, 2^(e - p + 1) at exponent e, rather
// than by conversion: it is exact, it works for formats that LibTorch has not (tf32), and the value
// before the rounding stays at hand.
//
// near_ties() is for kernels whose value before a rounding differs from the exact one by
// accumulation: within `most` of the border between two numbers the kernel may have either, with a
// chance of erfc(distance / (usual sqrt 2)) / 2, as of a normal error of deviation `usual`.
#include "reference/rounding.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/copysign.h>
#include <ATen/ops/erfc.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/round.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

namespace lockstep {

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
