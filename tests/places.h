// The folders that tests look into. They are compiled into one file, so that what a compiler's
// cache holds of the tests serves every checkout.
#pragma once

#include <string>

namespace lockstep {

std::string source_path(const std::string& name);  // of the checkout
std::string built_path(const std::string& name);   // of the build folder

}  // namespace lockstep
