#pragma once

#include <memory>

#include "reference/reference.h"

namespace lockstep {

// The fp64 oracle of every op that a checkpoint's model has. The checkpoint must outlive it. It
// computes for one thread at a time, and spreads over LibTorch's.
std::unique_ptr<Oracle> make_oracle(const Checkpoint& checkpoint, const ReferenceOptions& options);

}  // namespace lockstep
