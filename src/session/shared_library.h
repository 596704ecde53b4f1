#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Opens a shared library that was built with this program: the one beside the executable, as in a
// build folder, or else the one that the loader finds, which an installed program tells the folder
// (RUNPATH). Null: there is none, and dlerror() says why. It is never closed.
void* open_built_library(const std::string& name);

// The function `factory` of a library of this build that is made of LibTorch. `needs` says who
// wants what of it, for the Error that is thrown where there is none.
void* torch_factory(const std::string& name, const char* factory, std::string_view needs);

}  // namespace lockstep
