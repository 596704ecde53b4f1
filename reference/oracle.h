#pragma once

#include <memory>

#include "reference/reference.h"

namespace lockstep {

// The fp64 oracle of every op that a checkpoint's model has.
std::unique_ptr<Oracle> make_oracle(const Checkpoint& checkpoint, const ReferenceOptions& options);

}  // namespace lockstep
