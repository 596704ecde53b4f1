#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

// What a figure of a benchmark is a share of: of a roof, the time that it would take there, by the
// median. Else the median by that.
enum class Whole : uint8_t {
  none,
  read_roof,
  copy_rate,  // of a device, read and written; what is only read moves some percent faster
  dot_roof,
  step,
  limit,
  judging_limit,
  fp64_model
};

struct Figure {
  std::string shape, what, unit;
  double scale = 1;             // from SI to the unit
  std::vector<double> samples;  // in SI
  Whole whole = Whole::none;
  double best = 0;  // what the median is held against, in SI
};

inline double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace lockstep
