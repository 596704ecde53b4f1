#include "reference/rounded_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/where.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "src/stats/roundoff.h"
#include "src/stats/row_loops.h"

namespace lockstep {

at::Tensor spacing_around(const at::Tensor& x, const FloatFormat& format) {
  const at::Tensor powers =
      x.view(at::kLong).bitwise_and(int64_t{0x7ff0000000000000}).view(at::kDouble);
  return powers.clamp_min(std::ldexp(1.0, format.min_exponent)) *
         std::ldexp(1.0, 1 - format.precision);
}

at::Tensor turned_chance(const at::Tensor& want, const at::Tensor& spacing, const at::Tensor& inner,
                         const at::Tensor& chance) {
  const at::Tensor at = want.abs() / spacing;
  const at::Tensor distance = (at - at.floor() - 0.5).abs();
  const at::Tensor turning = 0.5 * (distance / (chance * std::sqrt(std::numbers::pi))).erfc();
  const at::Tensor as_it_is = (chance > kOneBorder) | (distance * spacing <= kOracleError * inner) |
                              (chance <= 0) | ((chance > 1e-15) & (distance > 11 * chance));
  return at::where(as_it_is, chance, at::maximum(chance, turning));
}

at::Tensor misround_chance(const at::Tensor& deviation, const at::Tensor& spacing, double misrounds,
                           double common) {
  const at::Tensor inside = deviation / spacing;
  return at::minimum(inside, (common * inside).clamp_min(misrounds)).clamp_max(1);
}

double usual_misround(double misrounds, double common) {
  return common > 0 ? misrounds : std::numeric_limits<double>::infinity();
}

double misround_in_gain(const at::Tensor& products, DType dtype) {
  return products.defined() && dtype != DType::f32 ? misround_in_proportion(dtype)
                                                   : std::numeric_limits<double>::infinity();
}

double closeness_of(DType dtype) {
  return dtype == DType::f32 ? 1.3e-6 : dtype == DType::f16 ? 1e-3 : 1.6e-2;
}

at::Tensor hashes_of(const at::Tensor& want, const at::Tensor& got) {
  std::vector<int64_t> factors;
  for (int64_t i = 0; i < want.size(1); ++i)
    factors.push_back(std::bit_cast<int64_t>(hash_factor(static_cast<uint64_t>(i))));
  const at::Tensor of_columns = at::from_blob(factors.data(), {std::ssize(factors)}, at::kLong)
                                    .to(want.device(), /*non_blocking=*/false, /*copy=*/true);
  constexpr int64_t kLow = 0xffffffff;
  const auto bits = [](const at::Tensor& x) {
    return x.to(at::kFloat).view(at::kInt).to(at::kLong);
  };
  const at::Tensor both = bits(want).bitwise_left_shift(32).bitwise_or(bits(got).bitwise_and(kLow));
  const at::Tensor term = both * of_columns;
  return term.bitwise_xor(term.bitwise_right_shift(32).bitwise_and(kLow)).sum(-1).view(at::kDouble);
}

}  // namespace lockstep
