#pragma once

#include <string>

#include "src/judge/judge.h"
#include "src/report/document.h"
#include "src/weights/checkpoint.h"

namespace lockstep {

// The note of a judgement that JudgeOptions::fail_fast ended, with what was judged, what there is
// of it, and what that is.
inline constexpr char kStoppedEarly[] =
    "stopped after the first pass with a finding (--fail-fast): {} of {} {} judged, the rest not";

// The verdict on a saved trace, pass by pass. Throws Error when it is no trace, or when its
// manifest names another model than `checkpoint`.
// rope_pairs: "half", "interleaved", or what the trace says (layouts.h).
Result judge_trace(const std::string& path, const Checkpoint& checkpoint, JudgeOptions options,
                   Detail detail = Detail::screen, const std::string& rope_pairs = "");

}  // namespace lockstep
