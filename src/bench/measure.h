#pragma once

#include <string>
#include <vector>

#include "kernels/base/tensor.h"
#include "src/bench/figures.h"

namespace lockstep {

// The figures of the shapes of that name ("all": those that are not large), the roofs of the
// machine first; of what judging costs instead, without roofs. Each shape has a checkpoint of its
// own, which is gone before the next is made. threads 0: as many as the machine has. Shows its
// progress on stderr.
std::vector<Figure> measure(const std::string& shape, Device device, int threads, bool judging);

}  // namespace lockstep
