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

// "lockstep judge TRACE --model DIR [OPTIONS]": what must be given, and that there is more.
std::string usage_of(const CommandPage& page);

// The headings of a page's options, in the order in which they first appear.
std::vector<std::string> groups_of(const CommandPage& page);

// "-m, --model DIR"
std::string signature_of(const OptionPage& option);

// The purpose of an option, and whether it must be given and may be repeated.
std::string says_of(const OptionPage& option);

}  // namespace lockstep
