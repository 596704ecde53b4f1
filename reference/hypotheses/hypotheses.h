// A hypothesis is one way to compute an op wrongly, as a function of the op's inputs and, of some,
// of a parameter whose candidates it proposes from what the engine stored. To add one: a row in the
// table of its kind, in the file of that kind. src/causes asks them of findings and decides which
// of them explains what was seen.
#pragma once

#include <memory>

#include "reference/reference.h"

namespace lockstep {

// The ways in which the ops of a checkpoint's model may be computed wrongly. The checkpoint must
// outlive them. For one thread at a time.
std::unique_ptr<Hypotheses> make_hypotheses(const Checkpoint& checkpoint,
                                            const ReferenceOptions& options);

}  // namespace lockstep
