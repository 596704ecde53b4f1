// The door of the shared library for ranks on CPUs.
#include "src/collectives/gloo.h"

namespace lockstep {

extern "C" CollectivesLibrary* lockstep_collectives() { return &library_of("Gloo", {}); }

}  // namespace lockstep
