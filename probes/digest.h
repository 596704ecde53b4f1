#pragma once

#include <cstdint>
#include <vector>

#include "kernels/digest.h"
#include "kernels/tensor.h"

namespace lockstep {

Digest digest_of(const TensorView& cpu_tensor);

// xxh3-64 of each row's bytes (outermost axis).
std::vector<uint64_t> row_hashes_of(const TensorView& cpu_tensor);
uint64_t hash_of(const void* bytes, size_t size);

}  // namespace lockstep
