#include "src/session/reference_library.h"

#include "src/session/shared_library.h"

namespace lockstep {

ReferenceLibrary& open_reference() {
  using Factory = ReferenceLibrary* (*)();
  static const auto make = reinterpret_cast<Factory>(torch_factory(
      "liblockstep_reference.so", "lockstep_reference", "judging needs the LibTorch reference"));
  static ReferenceLibrary* library = make();
  return *library;
}

}  // namespace lockstep
