#pragma once

#include <functional>
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

// The figures of one shape over so many ranks, a process each, beside those of one; device: "cpu",
// or "cuda" for a card each. Rank 0 has them shown; returns the exit status. Throws Error when the
// name is not that of one shape, and as run_ranks() does.
int measure_over_ranks(const std::string& shape, const std::string& device, int ranks,
                       const std::function<void(const std::vector<Figure>&)>& show);

}  // namespace lockstep
