#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

// The bytes of a NumPy file (format 1.0) of float32 numbers in C order, one a place of `shape`.
// NumPy counts lengths and numbers in little-endian; the numbers are handed over as they lie in
// memory, which is that order on the machines that this is built for.
std::string npy_of(std::span<const float> numbers, const std::vector<int64_t>& shape);

}  // namespace lockstep
