#pragma once

#include "src/ranks/collectives.h"

namespace lockstep {

// Opens liblockstep_collectives.so once (shared_library.h). Throws Error when this build has none.
CollectivesLibrary& open_collectives();

}  // namespace lockstep
