#pragma once

#include "reference/reference.h"

namespace lockstep {

// Opens liblockstep_reference.so once (shared_library.h). Only the commands that judge call it:
// loading LibTorch takes a third of a second. Throws Error when this build has none.
ReferenceLibrary& open_reference();

}  // namespace lockstep
