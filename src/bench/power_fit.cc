#include "src/bench/power_fit.h"

#include <algorithm>
#include <cmath>

namespace lockstep {

PowerFit fit_power(std::span<const double> sizes, std::span<const double> costs) {
  const size_t count = sizes.size();
  if (count < 3 || std::ranges::any_of(costs, [](double cost) { return !(cost > 0); })) return {};
  double mean_x = 0, mean_y = 0;
  for (size_t i = 0; i < count; ++i) mean_x += std::log(sizes[i]), mean_y += std::log(costs[i]);
  const auto n = static_cast<double>(count);
  mean_x /= n, mean_y /= n;
  double xx = 0, xy = 0, yy = 0;
  for (size_t i = 0; i < count; ++i) {
    const double x = std::log(sizes[i]) - mean_x, y = std::log(costs[i]) - mean_y;
    xx += x * x, xy += x * y, yy += y * y;
  }
  const double exponent = xy / xx;
  // Residuals of an exact law are rounding, of either sign.
  const double rest = std::max(0.0, yy - exponent * xy);
  return {exponent, std::sqrt(rest / (n - 2) / xx), yy > 0 ? 1 - rest / yy : 1};
}

}  // namespace lockstep
