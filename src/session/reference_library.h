#pragma once

#include "reference/reference.h"

namespace lockstep {

// Opens liblockstep_reference.so once (shared_library.h). Only the commands that judge call it:
// loading LibTorch takes a third of a second. Throws Error when this build has none. It is never
// closed, and what it makes may be used until the process ends.
ReferenceLibrary& open_reference();

}  // namespace lockstep
