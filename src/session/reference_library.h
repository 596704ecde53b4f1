#pragma once

#include <future>

#include "reference/reference.h"

namespace lockstep {

// Opens liblockstep_reference.so once (shared_library.h). Only the commands that judge call it:
// loading LibTorch takes a third of a second. Throws Error when this build has none. It is never
// closed, and what it makes may be used until the process ends.
ReferenceLibrary& open_reference();

// Loads LibTorch and its libraries for CUDA meanwhile, so that open_reference() finds them, which
// also tells what went wrong here. Whoever lets go of the future waits.
std::future<void> load_reference_for_device();

}  // namespace lockstep
