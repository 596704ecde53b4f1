#include "src/session/reference_library.h"

#include "kernels/base/ending.h"
#include "kernels/base/memory.h"
#include "src/session/shared_library.h"

namespace lockstep {

ReferenceLibrary& open_reference() {
  using Factory = ReferenceLibrary* (*)();
  static const auto make = reinterpret_cast<Factory>(torch_factory(
      "liblockstep_reference.so", "lockstep_reference", "judging needs the LibTorch reference"));
  static ReferenceLibrary* library = [] {
    end_at_once();  // asked for after LibTorch's own ends, so that it comes before them
    ReferenceLibrary* made = make();
    register_keeper([made](Device device) { made->free_unused(device.index); });
    return made;
  }();
  return *library;
}

}  // namespace lockstep
