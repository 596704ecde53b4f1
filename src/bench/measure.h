// All figures of a bench.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/tensor.h"
#include "src/bench/figures.h"

namespace lockstep {

// The figures of the shapes of that name, "all" for those that are not large, on a device that was
// opened; judging: what judging costs instead. threads: 0 for one a core.
std::vector<Figure> measured(const std::string& shape, Device device, int threads, bool judging);

}  // namespace lockstep
