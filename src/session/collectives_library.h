#pragma once

#include "src/ranks/collectives.h"

namespace lockstep {

// Opens the collectives of ranks on CPUs, or of ranks on GPUs, once (shared_library.h). Throws
// Error when this build has none. A process opens one of them.
CollectivesLibrary& open_collectives(DeviceKind kind);

}  // namespace lockstep
