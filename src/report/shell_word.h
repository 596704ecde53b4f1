// Commands that are printed for people to copy.
#pragma once

#include <string>

namespace lockstep {

// The text as one word of a shell: in single quotes unless it is plain.
std::string shell_word(const std::string& text);

}  // namespace lockstep
