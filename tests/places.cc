#include "tests/places.h"

namespace lockstep {

std::string source_path(const std::string& name) { return LOCKSTEP_SOURCE_DIR "/" + name; }
std::string built_path(const std::string& name) { return LOCKSTEP_BINARY_DIR "/" + name; }

}  // namespace lockstep
