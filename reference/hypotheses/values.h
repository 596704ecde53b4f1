// The value of a guess as a count.
#pragma once

#include <cstdint>

namespace lockstep {

// Guesses have their numbers in fp64, which holds every count of a tensor's elements.
inline int64_t as_count(double value) { return static_cast<int64_t>(value); }

}  // namespace lockstep
