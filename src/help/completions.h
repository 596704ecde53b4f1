// Scripts with which shells complete a command line of lockstep.
#pragma once

#include <span>
#include <string>

#include "src/help/command_page.h"

namespace lockstep {

// Each is for a shell to source, or to load when the command is first completed. It completes
// commands, options, and the values that a page knows of an option; it calls no program.
std::string bash_completions(std::span<const CommandPage> pages);
std::string zsh_completions(std::span<const CommandPage> pages);

}  // namespace lockstep
