#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "kernels/base/check.h"

namespace lockstep {

// A number that is kept in 32 bits. Throws Error for a larger one: it is not cut to fit.
template <typename Json>
int32_t int_from(const Json& value) {
  const auto wide = value.template get<int64_t>();
  check(wide == static_cast<int32_t>(wide), "{} is no number that belongs there", wide);
  return static_cast<int32_t>(wide);
}

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
