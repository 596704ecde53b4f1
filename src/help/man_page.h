#pragma once

#include <span>
#include <string>

#include "src/help/command_page.h"

namespace lockstep {

// lockstep(1) in the man macros of troff: every command with its options, the words of the screens,
// examples. `version`: "0.1.0".
std::string man_page(std::span<const CommandPage> pages, const std::string& version);

}  // namespace lockstep
