#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/digest.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// All sums are fp64. Throws Error of a tensor that is not in host memory.
Digest digest_of(const TensorView& cpu_tensor);
// The digest of a tensor of `count` elements that is known by the hashes of its rows alone.
Digest digest_of_rows(std::span<const uint64_t> row_hashes, int64_t count);
// The first thing that a digest says of the tensor which is not so, under the name of its column
// (traces/README.md); empty: none. Counts, extremes and exponents are exact, and absmax_at is any
// element of that magnitude. A sum of n terms, in fp64 and in whatever order, is off by at most
// (n - 1) 2^-53 times the sum of their sizes (Higham, Accuracy and Stability, 4.2), and so is that
// which it is held to; four times that is let pass, as m2 may be made of two such sums.
std::string_view contradiction(const Digest& digest, const TensorView& cpu_tensor);
// The same of a digest by itself, of a tensor of `count` elements that nobody has any more. `rms`
// and the hashes of rows are what is kept beside it; no hashes: they were not kept.
std::string_view contradiction(const Digest& digest, int64_t count, double rms,
                               std::span<const uint64_t> row_hashes);

// xxh3-64 of each row's bytes (outermost axis). Throws Error of a tensor without axes, or not in
// host memory.
std::vector<uint64_t> row_hashes_of(const TensorView& cpu_tensor);
// The xxh3-64 of the bytes.
uint64_t hash_of(const void* bytes, size_t size);

}  // namespace lockstep
