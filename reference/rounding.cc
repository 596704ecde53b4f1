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

Grid grid_of(DType dtype) {
  const FloatFormat format = format_of(dtype);
  return {format.precision, format.min_exponent, format.max};
}

at::Tensor spacing(const at::Tensor& x, const Grid& grid) {
  // x = m 2^e with m in [1/2, 1), so that its leading bit is worth 2^(e - 1).
  const at::Tensor exponent = std::get<1>(at::frexp(x)).to(at::kDouble) - 1;
  return at::exp2(exponent.clamp_min(grid.least) - (grid.precision - 1));
}

at::Tensor rounded(const at::Tensor& x, const Grid& grid) {
  const at::Tensor step = spacing(x, grid);
  at::Tensor y = at::round(x / step) * step;  // halves to even
  if (grid.max > 0) {
    const double infinity = std::numeric_limits<double>::infinity();
    y = at::where(y.abs() > grid.max, at::copysign(at::full_like(y, infinity), y), y);
  }
  return at::where(at::isfinite(x), y, x);
}

void near_ties(const at::Tensor& z, const at::Tensor& most, const at::Tensor& usual,
               const Grid& grid, at::Tensor& step, at::Tensor& chance) {
  const at::Tensor apart = spacing(z, grid), at = z.abs() / apart;
  const at::Tensor distance = (at - at.floor() - 0.5).abs() * apart;
  const at::Tensor near = distance <= most, none = at::zeros({}, z.options());
  const at::Tensor deviations = distance / usual.clamp_min(std::numeric_limits<double>::min());
  step = at::where(near, apart, none);
  chance = at::where(near, 0.5 * at::erfc(deviations / std::sqrt(2.0)), none);
}

at::Tensor halves(const at::Tensor& x, const Grid& grid) {
  const at::Tensor apart = spacing(x, grid), at = x.abs() / apart;
  return at::where(at - at.floor() == 0.5, apart, at::zeros({}, x.options()));
}

}  // namespace lockstep
