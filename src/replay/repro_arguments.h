// The arguments that the programs of a repro call an op with, in the order of lockstep_ops.h.
// Tensors are numbered as the programs have them: outputs first, and then inputs.
#pragma once

#include <string>

#include "src/replay/captured_call.h"

namespace lockstep {

// The statements that call the function.
std::string call_in_c(const CapturedCall& call);
// A list in JSON of [kind, value] and [kind, number, ...] of tensors.
std::string arguments_in_json(const CapturedCall& call);

}  // namespace lockstep
