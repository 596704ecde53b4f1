// The first steps of the process, before a command runs.
#pragma once

#include <string>

namespace lockstep {

// The version, and what a report of trouble needs to say of this build.
std::string version_text();

// Two things can only be told before a process begins: by starting again. OpenMP's threads
// (LibTorch's and oneDNN's) spin while they wait, which costs tenfold as soon as another process
// shares the cores. And the system clears new memory 4 KiB at a time unless it is asked for huge
// pages (glibc 2.35 on; elsewhere nothing changes), which is a third of the time of judging a long
// prompt: all that two models and an engine show of it is kept.
void start_again_prepared(char** argv);

// A descriptor that the caller closed would be given to the next file that is opened, and what is
// printed would go into it. Each is opened so that its use fails, as it did: a result that reached
// nobody is trouble.
void open_standard_descriptors();

}  // namespace lockstep
