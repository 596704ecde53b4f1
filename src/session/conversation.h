// A conversation on a terminal.
#pragma once

#include "src/session/options.h"

namespace lockstep {

// A line of stdin a turn, until its end (Ctrl-D); answers on stdout as they come. Throws Error when
// the model cannot be opened or has no tokenizer or chat template.
void converse(const ModelOptions& options);

}  // namespace lockstep
