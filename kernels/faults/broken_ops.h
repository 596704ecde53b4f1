#pragma once

#include "kernels/ops.h"

namespace lockstep {

// Kernels with bugs that only a device's kernels can have, to be seeded as faults; liblockstep_cuda
// exports them beside cuda_ops.h. Each entry keeps its op's contract on right arguments but for
// its bug, and the others are empty:
//   rms_norm  reads the partial sums of other warps without waiting for them: a race
//   matmul    leaves the last 64 columns, or half of fewer than 128, as they were; no bias
//   kv_write  computes offsets in 32 bits and takes those that wrap below 0 for padding
extern "C" [[gnu::visibility("default")]] const Ops* lockstep_cuda_broken_ops();

}  // namespace lockstep
