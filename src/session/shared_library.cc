#include "src/session/shared_library.h"

#include <dlfcn.h>

#include <filesystem>

namespace lockstep {

void* open_built_library(const std::string& name) {
  namespace fs = std::filesystem;
  const fs::path beside = fs::read_symlink("/proc/self/exe").parent_path() / name;
  return dlopen(fs::exists(beside) ? beside.c_str() : name.c_str(), RTLD_NOW | RTLD_LOCAL);
}

}  // namespace lockstep
