#include "src/session/shared_library.h"

#include <dlfcn.h>

#include <filesystem>

#include "kernels/base/check.h"

namespace lockstep {

void* open_built_library(const std::string& name) {
  namespace fs = std::filesystem;
  const fs::path beside = fs::read_symlink("/proc/self/exe").parent_path() / name;
  return dlopen(fs::exists(beside) ? beside.c_str() : name.c_str(), RTLD_NOW | RTLD_LOCAL);
}

void* torch_factory(const std::string& name, const char* factory, std::string_view needs) {
  // Never closed: LibTorch does not survive being unloaded.
  void* handle = open_built_library(name);
  check(handle != nullptr,
        "{}, which could not be opened ({}): build with -DLOCKSTEP_TORCH=ON and keep {} beside the "
        "executable",
        needs, handle == nullptr ? dlerror() : "", name);
  void* made = dlsym(handle, factory);
  check(made != nullptr, "{} is not the library of this build: rebuild it", name);
  return made;
}

}  // namespace lockstep
