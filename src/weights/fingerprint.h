#pragma once

#include <string>

#include "src/weights/checkpoint.h"

namespace lockstep {

// Whether a hash that was recorded is of this checkpoint: its own (checkpoint.h), or, as older
// traces and baselines have them, one of the text of config.json and of the files as they lie,
// which are then read again.
bool has_fingerprint(const Checkpoint& checkpoint, const std::string& recorded);
bool has_weights_hash(const Checkpoint& checkpoint, const std::string& recorded);

}  // namespace lockstep
