#include "src/session/reference_library.h"

#include <dlfcn.h>

#include <filesystem>

#include "kernels/base/check.h"

namespace lockstep {

ReferenceLibrary& open_reference() {
  static ReferenceLibrary* library = [] {
    const std::string path =
        std::filesystem::read_symlink("/proc/self/exe").parent_path() / "liblockstep_reference.so";
    // Never closed: LibTorch does not survive being unloaded.
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    check(handle != nullptr,
          "judging needs the LibTorch reference, which could not be opened ({}): build with "
          "-DLOCKSTEP_TORCH=ON and keep liblockstep_reference.so beside the executable",
          handle == nullptr ? dlerror() : "");
    using Factory = ReferenceLibrary* (*)();
    const auto factory = reinterpret_cast<Factory>(dlsym(handle, "lockstep_reference"));
    check(factory != nullptr, "{} is not the reference of this build: rebuild it", path);
    return factory();
  }();
  return *library;
}

}  // namespace lockstep
