#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "src/session/session.h"

namespace lockstep {

// Where numbers come from, as traces and results keep it: who computed what, with what, when. All
// values are texts, for people and for comparison; those that decide how a trace is judged are read
// back by run_facts_of().
std::map<std::string, std::string> provenance_of(const Session& session,
                                                 const std::vector<std::string>& command_line);
// The same but for weights_xxh3, which reads all of the weights.
std::map<std::string, std::string> facts_of(const Session& session,
                                            const std::vector<std::string>& command_line);

// The command line of a command, as a user would type it.
std::vector<std::string> command_line_of(const std::string& command, std::span<char*> arguments);

// The version, and what a report of trouble needs to say of this build: lines.
std::string build_text();

}  // namespace lockstep
