// Figures of a model over ranks, beside those of one rank.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/memory.h"
#include "src/bench/figures.h"
#include "src/ranks/launch.h"
#include "src/weights/checkpoint.h"

namespace lockstep {

// One rank's share of timing prompts and decode passes on its device, which is open: op by op and
// from graphs, where its device has them, with nothing shown and with every point digested, and a
// collective by itself. Rank 0 serves the same alone before, and returns the figures; the others
// return none. On a CUDA device decode passes are shares of the read roof of as
// many devices as there are ranks. Throws Error when digests change the tokens.
std::vector<Figure> measure_rank(const std::string& shape, const Checkpoint& checkpoint,
                                 Device device, RankSeat& seat);

}  // namespace lockstep
