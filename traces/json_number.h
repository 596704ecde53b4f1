#pragma once

#include <cmath>

namespace lockstep {

// A double of a report or a journal, for either Json of nlohmann/json. JSON has no number that is
// not finite: as "NaN", "Infinity" or "-Infinity" it comes back as it was by JsonValue::real(),
// where null would look like nothing.
template <typename Json>
Json json_number(double x) {
  if (std::isfinite(x)) return x;
  return std::isnan(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity";
}

}  // namespace lockstep
