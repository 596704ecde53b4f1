#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/digest.h"
#include "kernels/tensor.h"

namespace lockstep {

Digest digest_of(const TensorView& cpu_tensor);
// Of hashes alone: of a tensor of `count` elements with rows of those hashes.
Digest digest_of_rows(std::span<const uint64_t> row_hashes, int64_t count);
// Whether the tensor is one that the digest's hash is of.
bool is_of(const Digest& digest, const TensorView& cpu_tensor);

// xxh3-64 of each row's bytes (outermost axis).
std::vector<uint64_t> row_hashes_of(const TensorView& cpu_tensor);
uint64_t hash_of(const void* bytes, size_t size);

}  // namespace lockstep
