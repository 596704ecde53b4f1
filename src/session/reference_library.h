#pragma once

#include "reference/reference.h"

namespace lockstep {

// Opens liblockstep_reference.so, which lies beside this executable, once. Only the commands that
// judge call it: loading LibTorch takes a third of a second. Throws Error when this build has none.
ReferenceLibrary& open_reference();

}  // namespace lockstep
