#pragma once

#include <string>

namespace lockstep {

// Opens a shared library that was built with this program: the one beside the executable, as in a
// build folder, or else the one that the loader finds, which an installed program tells the folder
// (RUNPATH). Null: there is none, and dlerror() says why. It is never closed.
void* open_built_library(const std::string& name);

}  // namespace lockstep
