#pragma once

#include <memory>

#include "reference/reference.h"

namespace lockstep {

// The ways in which the ops of a checkpoint's model may be computed wrongly. The checkpoint must
// outlive them.
std::unique_ptr<Hypotheses> make_hypotheses(const Checkpoint& checkpoint,
                                            const ReferenceOptions& options);

}  // namespace lockstep
