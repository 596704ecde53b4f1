#pragma once

namespace lockstep {

// Makes this process what the command wants to be, first of all that main does: the standard
// descriptors are open, and what the system would end it for becomes a sentence.
void prepare_process();

// For a command that computes: its libraries read the environment once, when the process begins.
// Where that is not as they want it the process begins again, with the same arguments (main's), and
// this does not return.
void prepare_to_compute(char** argv);

}  // namespace lockstep
