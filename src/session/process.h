#pragma once

namespace lockstep {

// Makes this process what the command wants to be, first of all that main does: the standard
// descriptors are open, what the system would end it for becomes a sentence, and it has begun with
// the environment that its libraries read once. Does not return where it begins again for that,
// with the same arguments (main's).
void prepare_process(char** argv);

}  // namespace lockstep
