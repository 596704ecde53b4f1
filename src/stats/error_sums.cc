// Eight sums of each kind go side by side, as in row_loops.h, so that the result is the same on
// every machine.
#include "src/stats/error_sums.h"

#include <cmath>
#include <limits>

#include "kernels/base/widest.h"

namespace lockstep {

void ErrorSums::add(const ErrorSums& other) {
  elements += other.elements;
  introduced += other.introduced;
  compared += other.compared;
  propagated += other.propagated;
  total += other.total;
  floor += other.floor;
  not_close += other.not_close;
}

void ErrorSums::add_row(std::span<const double> got, std::span<const double> want,
                        std::span<const double> exact, std::span<const double> rounded,
                        DType dtype) {
  constexpr size_t kLanes = 8;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (exact.size() != got.size() || rounded.size() != got.size()) return;
  // The tolerances of torch.testing.assert_close where none are given, by dtype.
  const double relative = dtype == DType::f32 ? 1.3e-6 : dtype == DType::f16 ? 1e-3 : 1.6e-2;
  const double *g = got.data(), *w = want.data(), *e = exact.data(), *r = rounded.data();
  const size_t count = got.size(), whole = count / kLanes * kLanes;
  double known[kLanes] = {}, far[kLanes] = {};
  double propagated_[kLanes] = {}, total_[kLanes] = {}, floor_[kLanes] = {};
  const auto add = [&](size_t i, size_t lane) __attribute__((always_inline)) {
    const double of_total = g[i] - e[i], of_propagated = w[i] - e[i], of_floor = r[i] - e[i];
    // Comparisons with what is no number are false.
    far[lane] += std::fabs(g[i] - r[i]) <= 1e-5 + relative * std::fabs(r[i]) ? 0 : 1;
    const bool numbers = (std::fabs(of_total) < kInfinity) &
                         (std::fabs(of_propagated) < kInfinity) & (std::fabs(of_floor) < kInfinity);
    known[lane] += numbers ? 1 : 0;
    total_[lane] += numbers ? of_total * of_total : 0;
    propagated_[lane] += numbers ? of_propagated * of_propagated : 0;
    floor_[lane] += numbers ? of_floor * of_floor : 0;
  };
  on_widest_vectors([&]() __attribute__((always_inline)) {
    for (size_t i = 0; i < whole; i += kLanes) {
#pragma omp simd
      for (size_t lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
    }
    for (size_t i = whole; i < count; ++i) add(i, i - whole);
  });
  for (size_t lane = 0; lane < kLanes; ++lane) {
    compared += static_cast<int64_t>(known[lane]);
    not_close += static_cast<int64_t>(far[lane]);
    total += total_[lane], propagated += propagated_[lane], floor += floor_[lane];
  }
}

}  // namespace lockstep
