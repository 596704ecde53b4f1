#include "src/session/collectives_library.h"

#include <dlfcn.h>

#include "kernels/base/check.h"
#include "src/session/shared_library.h"

namespace lockstep {

CollectivesLibrary& open_collectives() {
  static CollectivesLibrary* library = [] {
    // Never closed: LibTorch does not survive being unloaded.
    void* handle = open_built_library("liblockstep_collectives.so");
    check(handle != nullptr,
          "--tp needs LibTorch's collectives, which could not be opened ({}): build with "
          "-DLOCKSTEP_TORCH=ON and keep liblockstep_collectives.so beside the executable",
          handle == nullptr ? dlerror() : "");
    using Factory = CollectivesLibrary* (*)();
    const auto factory = reinterpret_cast<Factory>(dlsym(handle, "lockstep_collectives"));
    check(factory != nullptr,
          "liblockstep_collectives.so is not the library of this build: rebuild it");
    return factory();
  }();
  return *library;
}

}  // namespace lockstep
