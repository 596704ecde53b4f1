// The screens of `lockstep --help` and `lockstep COMMAND --help`.
#pragma once

#include <span>
#include <string>

#include "src/help/command_page.h"

namespace lockstep {

// Every line has at most `width` characters, as long as no single word is longer.
std::string help_text(const CommandPage& page, size_t width);

// All commands under the questions that they answer, in the order of the table.
std::string overview_text(std::span<const CommandPage> pages, size_t width);

}  // namespace lockstep
