#pragma once

#include <string_view>

namespace lockstep {

// The programs of a repro before its own numbers are put into them: text between @ and @ stands for
// those. The C one wants a table of tensors and a call, the Python one reads both from the file.
extern const std::string_view kReproInC;
extern const std::string_view kReproInPython;

}  // namespace lockstep
