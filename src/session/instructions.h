#pragma once

#include <string>
#include <vector>

#include "src/judge/verdict.h"
#include "src/session/session.h"

namespace lockstep {

// Has the session's engine compute its passes as --executor says: instruction by instruction, after
// a schedule that is made of the model's sizes, or read; or decode steps in one launch. Throws
// Error where the model, the device or the schedule does not allow it. The schedule is kept in the
// session, and so lives as long as its engine.
void use_executor(const InstructionOptions& options, const std::vector<std::string>& replaced,
                  Session& session);

// Writes the timeline that the session has at its path, in which Perfetto shows it; nothing where
// none was asked for. Throws Error where no step was computed that has one.
void write_timeline(const Session& session, const std::string& path);

// Adds to a result who wrote what is wrong: a note for each finding with an element, up to a few.
void name_instructions(Result& result, const Schedule& schedule);

}  // namespace lockstep
