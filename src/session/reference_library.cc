#include "src/session/reference_library.h"

#include <dlfcn.h>

#include "kernels/base/check.h"
#include "src/session/shared_library.h"

namespace lockstep {

ReferenceLibrary& open_reference() {
  static ReferenceLibrary* library = [] {
    // Never closed: LibTorch does not survive being unloaded.
    void* handle = open_built_library("liblockstep_reference.so");
    check(handle != nullptr,
          "judging needs the LibTorch reference, which could not be opened ({}): build with "
          "-DLOCKSTEP_TORCH=ON and keep liblockstep_reference.so beside the executable",
          handle == nullptr ? dlerror() : "");
    using Factory = ReferenceLibrary* (*)();
    const auto factory = reinterpret_cast<Factory>(dlsym(handle, "lockstep_reference"));
    check(factory != nullptr,
          "liblockstep_reference.so is not the reference of this build: rebuild it");
    return factory();
  }();
  return *library;
}

}  // namespace lockstep
