#pragma once

#include <memory>

#include "reference/reference.h"

namespace lockstep {

// Qwen2, Qwen2.5 and Qwen3 as a function that can be differentiated. In fp64 throughout, for the
// texts of one thread at a time; the checkpoint must outlive it.
std::unique_ptr<ErrorSharer> qwen_error_sharer(const Checkpoint& checkpoint,
                                               const ReferenceOptions& options);

}  // namespace lockstep
