#pragma once

#include <limits>
#include <span>

namespace lockstep {

// The exponent b of cost = a size^b: the slope of log cost over log size by least squares.
struct PowerFit {
  double exponent = std::numeric_limits<double>::quiet_NaN();
  double error = std::numeric_limits<double>::quiet_NaN();  // the standard error of the exponent
  double explained = std::numeric_limits<double>::quiet_NaN();  // R^2: of the variance of log cost
};

// Takes as many costs as sizes, which are above 0. All NaN for fewer than three, since a line goes
// through any two, or when a cost is not above 0.
PowerFit fit_power(std::span<const double> sizes, std::span<const double> costs);

}  // namespace lockstep
