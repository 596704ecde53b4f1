// How the cost of judging grows with what is judged.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/base/tensor.h"
#include "src/bench/power_fit.h"
#include "src/report/document.h"
#include "src/weights/checkpoint.h"

namespace lockstep {

// The cost of a whole judged pass, with the models beside it as in a run, while one thing grows and
// all else stays. Costs are medians of several passes, by size.
struct Growth {
  std::string what;           // grows
  std::vector<double> sizes;  // each twice the one before, but for the last of layers
  std::vector<double> seconds;
  std::vector<double> bytes;  // resident memory that the pass took beyond what there was before it

  PowerFit of_time() const { return fit_power(sizes, seconds); }
  PowerFit of_memory() const { return fit_power(sizes, bytes); }
};

// Measures four things: tokens of a prompt, requests of a decode pass, the context of a decode
// pass, and layers. Sizes double while the checkpoint has positions and layers for them, and while
// the next one is expected to end within `seconds` of wall clock, which each of the four has; four
// sizes are measured however long they take. Serves in bf16 on that device. show: is told what is
// measured now. Throws Error as time_judging() does: a figure comes from passes that were judged
// clean.
std::vector<Growth> measure_growth(const Checkpoint& checkpoint, Device device, int threads,
                                   double seconds,
                                   const std::function<void(const std::string&)>& show);

// A row each for the time and the memory of each, with `shape` before it.
Table table_of(const std::string& shape, const std::vector<Growth>& growths);

}  // namespace lockstep
