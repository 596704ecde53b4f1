// The arithmetic of Filler::put in budget.cc over arrays, without a branch, so that it is vectors'
// work.
#include "src/judge/budget_loops.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/base/widest.h"

namespace lockstep {
namespace {

// The distance of neighbours around x: ulp() of kernels/base/dtype.h.
struct Spacing {
  double least, largest, of_power;

  explicit Spacing(DType dtype) {
    const FloatFormat format = format_of(dtype);
    least = std::ldexp(1.0, format.min_exponent);
    largest = power_of(format.max);
    of_power = std::ldexp(1.0, 1 - format.precision);
  }
  [[gnu::always_inline]] static double power_of(double x) {
    return std::bit_cast<double>(std::bit_cast<uint64_t>(x) & 0x7ff0000000000000);
  }
  [[gnu::always_inline]] double around(double x) const {
    const double power = power_of(x);
    const double finite = power < std::numeric_limits<double>::infinity() ? power : largest;
    return (finite > least ? finite : least) * of_power;
  }
};

}  // namespace

void add_rounding(std::span<const double> want, DType dtype, double misrounds, double common,
                  Budget& budget) {
  const Spacing spacing(dtype);
  const double* const w = want.data();
  double *limit = budget.limit.data(), *variance = budget.variance.data();
  double* const misround = budget.misround.data();
  const size_t count = want.size();
  on_widest_vectors([&]() __attribute__((always_inline)) {
#pragma omp simd
    for (size_t i = 0; i < count; ++i) {
      const double l = limit[i], v = variance[i], apart = spacing.around(w[i]);
      limit[i] = spacing.around(std::fabs(w[i]) + l) / 2 + l;
      variance[i] = apart * apart / 12 + v;
      misround[i] = misround_chance(std::sqrt(v), apart, misrounds, common);
    }
  });
}

}  // namespace lockstep
