#pragma once

#include <array>
#include <cstdint>

#include "kernels/base/names.h"

namespace lockstep {

// A number that is held to a limit, by what it counts. People and reports read the short names.
enum class StatisticKind : uint8_t {
  bits,         // T0: elements with other bits than the exact result rounded
  max_error,    // T1: the largest error of an element, in units of its budget
  rms_error,    // T2: the root mean square of all errors, in units of what rounding makes of them
  misrounds,    // T3: the share of elements that are not the exact result rounded
  worst_slice,  // T4: T2 of the row, column, head or page that scatters most
  gain,         // T5: the factor that all elements are too large or too small by
  flips,        // tokens that differ from those of the fp64 model
  divergence,   // KL: the Kullback-Leibler divergence of the choices from those of the fp64 model
  contract,     // a place that rounds otherwise than the others of its point
};
inline constexpr int kStatisticKinds = 9;

template <>
inline constexpr auto kNamesOf<StatisticKind> =
    std::to_array<const char*>({"T0", "T1", "T2", "T3", "T4", "T5", "flips", "KL", "contract"});

}  // namespace lockstep
