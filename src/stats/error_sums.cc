#include "src/stats/error_sums.h"

#include <cmath>

#include "src/stats/moments.h"

namespace lockstep {
namespace {

// The tolerances of torch.testing.assert_close where none are given, by dtype.
bool close_for_torch(double got, double reference, DType dtype) {
  const double relative = dtype == DType::f32 ? 1.3e-6 : dtype == DType::f16 ? 1e-3 : 1.6e-2;
  return within(std::fabs(got - reference), 1e-5 + relative * std::fabs(reference));
}

}  // namespace

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
  if (exact.size() != got.size() || rounded.size() != got.size()) return;
  for (size_t i = 0; i < got.size(); ++i) {
    const double of_total = got[i] - exact[i], of_propagated = want[i] - exact[i];
    const double of_floor = rounded[i] - exact[i];
    if (!close_for_torch(got[i], rounded[i], dtype)) ++not_close;
    if (!std::isfinite(of_total) || !std::isfinite(of_propagated) || !std::isfinite(of_floor))
      continue;
    ++compared;
    total += of_total * of_total;
    propagated += of_propagated * of_propagated;
    floor += of_floor * of_floor;
  }
}

}  // namespace lockstep
