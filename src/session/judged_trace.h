#pragma once

#include <string>

#include "src/judge/judge.h"
#include "src/weights/checkpoint.h"

namespace lockstep {

// The verdict on a saved trace, pass by pass. Throws Error when it is no trace, or when its
// manifest names another model than `checkpoint`.
Result judge_trace(const std::string& path, const Checkpoint& checkpoint, JudgeOptions options);

}  // namespace lockstep
