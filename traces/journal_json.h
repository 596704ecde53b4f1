#pragma once

#include <cstdint>
#include <string>

#include "probes/recorder.h"

namespace lockstep {

// The digests of a pass as JSON lines: one for the pass, then one for each tensor, whose `seq`
// count on from `seq`. Data is not looked at. Each line ends with a line break. README.md names the
// fields.
std::string journal_lines(const Pass& pass, int64_t seq);

}  // namespace lockstep
