#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "kernels/base/check.h"

namespace lockstep {

// A double of a report or a journal, for either Json of nlohmann/json. JSON has no number that is
// not finite: as "NaN", "Infinity" or "-Infinity" it comes back as it was, where null would look
// like nothing.
template <typename Json>
Json json_number(double x) {
  if (std::isfinite(x)) return x;
  return std::isnan(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity";
}

// The double that json_number() was given. Throws Error when `value` is none of those.
template <typename Json>
double double_from(const Json& value) {
  if (value.is_number()) return value;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::string text = value.is_string() ? value.template get<std::string>() : value.dump();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  check(text == "Infinity" || text == "-Infinity",
        "{} is no number: a number, \"NaN\", \"Infinity\" or \"-Infinity\" was wanted", text);
  return text == "Infinity" ? kInfinity : -kInfinity;
}

}  // namespace lockstep
