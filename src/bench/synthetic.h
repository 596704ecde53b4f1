#pragma once

#include <string>

#include "src/weights/checkpoint.h"

namespace lockstep {

// A checkpoint of any shape whose weights are random: what a benchmark runs when there are no
// published files. `config` is the text of a config.json that stores bf16. Matrices are normal with
// the standard deviation 1 / sqrt(columns), which keeps activations in range through any number of
// layers; norms spread by 0.02 around 1 and biases around 0. The same config gives the same
// weights.
//
// It is on disk when this returns, in a file of TMPDIR that lost its name before the first weight
// was written: however the process ends, nothing is left. dir() of the checkpoint is gone.
// Throws Error when there is no room.
Checkpoint synthetic_checkpoint(const std::string& config);

}  // namespace lockstep
