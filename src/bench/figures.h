// A figure of a benchmark: its samples, and what they are a share of.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "src/report/output.h"

namespace lockstep {

// SI: seconds, bytes, operations, or these a second.
struct Figure {
  // The whole that a figure of a benchmark is a share of. A share of a roof is the time that the
  // work would take there, by the median; any other share is the median by the whole.
  enum class Whole : uint8_t {
    most,   // its own best, of a rate
    least,  // its own best, of a time: that by the median
    read_roof,
    dot_roof,
    step,
    digested,
    limit,
    judging_limit,
    fp64_model
  };

  std::string shape, what, unit;
  double scale = 1;             // from SI to the unit
  std::vector<double> samples;  // in SI
  Whole whole = Whole::most;
  double best = 0;  // what the median is held against, in SI
};

// Wall-clock seconds of a call.
inline double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// At least one value; of an even number the mean of the two in the middle.
inline double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

// The columns of `lockstep bench`: shape, what, unit, min, median, max, share and what it is of.
Table table_of(const std::vector<Figure>& figures);

}  // namespace lockstep
