#pragma once

#include <cstdlib>

namespace lockstep {

// Tests of many combinations run a fixed part of them, in which each value of each is there, and
// all of them where LOCKSTEP_WHOLE is set (tests/README.md).
inline bool whole() { return std::getenv("LOCKSTEP_WHOLE") != nullptr; }

}  // namespace lockstep
