#pragma once

#include <string>
#include <vector>

namespace lockstep {

// The names that an open library exports, by its own table of them (DT_GNU_HASH, which every linker
// of today writes); without one, none.
std::vector<std::string> exports_of(void* library);

}  // namespace lockstep
