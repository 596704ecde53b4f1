// How a command reads its arguments, and how it is described.
#pragma once

#include <string>

#include "tools/commands.h"

namespace CLI {
class App;
}  // namespace CLI

namespace lockstep {

// Reads a command's arguments into what its options were bound to. False: help was asked for and
// has been printed, or the command was to be described and is. Throws Error, with the nearest
// option, on what the command does not know or cannot take. `examples`: shell commands, a line
// each. Nothing of CLI11 leaves it but through what options were bound to.
bool parse(CLI::App& app, Args args, const std::string& examples);

// The heading that the options added from here on stand under in the help.
void begin_group(CLI::App& app, const char* heading);

// --explain WORD: says what a word of the screens means, and ends the command.
void add_explain_option(CLI::App& app);

}  // namespace lockstep
