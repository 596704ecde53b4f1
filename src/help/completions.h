// What shells need to complete a command line of lockstep.
#pragma once

#include <span>
#include <string>

#include "src/help/command_page.h"

namespace lockstep {

// Scripts for a shell to source, or to load when the command is first completed. They complete
// commands, options, and the values that a page knows of an option; they call no program.
std::string bash_completions(std::span<const CommandPage> pages);
std::string zsh_completions(std::span<const CommandPage> pages);

}  // namespace lockstep
