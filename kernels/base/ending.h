// How a process that has LibTorch in it ends.
#pragma once

namespace lockstep {

// From here on this process ends at once when it exits, with all that it printed, and without the
// destructors of what lives as long as it: LibTorch's take a third of the time of the shortest
// judgement, and give memory back that the system takes anyway. Where others have code here, whose
// end may write what they wait for, it ends in full: a profiler, a sanitizer, who keep_ends().
void end_at_once();

// A library of somebody else is opened, whose destructors are to run.
void keep_ends();

}  // namespace lockstep
