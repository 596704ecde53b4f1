#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/tensor.h"

namespace lockstep {

// What is kept of every tensor, in one pass over its bytes. Numbers are of the finite elements, in
// fp64; counts are of all elements.
struct Digest {
  uint64_t hash = 0;  // xxh3-64 of the bytes in logical order
  int64_t count = 0;
  int64_t nan = 0, pos_inf = 0, neg_inf = 0;
  int64_t zeros = 0, subnormals = 0;
  double min = 0, max = 0;           // 0 when nothing is finite
  double absmax = 0;
  int64_t absmax_index = -1;         // first element with that magnitude; -1: nothing finite
  double mean = 0, m2 = 0;           // Welford: m2 = sum (x - mean)^2
  double sum_abs = 0, sum_squares = 0;
  std::array<uint32_t, 256> exponents{};  // of fp32-like exponents: bin = clamp(e + 127, 0, 255)

  double rms() const;  // sqrt(sum_squares / finite elements), 0 when there is none
  int64_t finite() const { return count - nan - pos_inf - neg_inf; }
};

Digest digest_of(const TensorView& cpu_tensor);

// xxh3-64 of each row's bytes (outermost axis).
std::vector<uint64_t> row_hashes_of(const TensorView& cpu_tensor);
uint64_t hash_of(const void* bytes, size_t size);

}  // namespace lockstep
