#include "src/session/collectives_library.h"

#include "src/session/shared_library.h"

namespace lockstep {

CollectivesLibrary& open_collectives() {
  using Factory = CollectivesLibrary* (*)();
  static const auto make = reinterpret_cast<Factory>(torch_factory(
      "liblockstep_collectives.so", "lockstep_collectives", "--tp needs LibTorch's collectives"));
  static CollectivesLibrary* library = make();
  return *library;
}

}  // namespace lockstep
