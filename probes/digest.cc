#include "probes/digest.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/check.h"

namespace lockstep {
namespace {

constexpr size_t kBlock = 1024;  // elements: the widened block stays in the first-level cache

// Exponent of |x| as an fp32 stores it: zeros and what is below its normal numbers in bin 0, NaN
// and Inf in bin 255.
size_t exponent_bin(double x) {
  const auto biased = static_cast<int>((std::bit_cast<uint64_t>(x) >> 52) & 0x7ff);
  return static_cast<size_t>(std::clamp(biased - 1023 + 127, 0, 255));
}

// Counts what is not finite and moves the finite elements to the front, in order.
size_t sift(std::span<double> block, Digest& digest) {
  size_t finite = 0;
  for (double x : block) {
    ++digest.exponents[exponent_bin(x)];
    if (std::isfinite(x)) {
      block[finite++] = x;
    } else if (std::isnan(x)) {
      ++digest.nan;
    } else {
      ++(x > 0 ? digest.pos_inf : digest.neg_inf);
    }
  }
  return finite;
}

// Chan's merge of (count, mean, m2) with those of a block. Two short loops over a block cost far
// less than one division an element.
void merge_moments(std::span<const double> block, double before, Digest& digest) {
  const auto n = static_cast<double>(block.size());
  double sum = 0, m2 = 0;
  for (double x : block) {
    sum += x;
    digest.sum_abs += std::fabs(x);
    digest.sum_squares += x * x;
  }
  const double mean = sum / n;
  for (double x : block) m2 += (x - mean) * (x - mean);
  const double delta = mean - digest.mean, all = before + n;
  digest.mean += delta * (n / all);
  digest.m2 += m2 + delta * delta * (before * n / all);
}

// The finite elements' extremes; `tiny` is the smallest normal number of the dtype.
void merge_extremes(std::span<const double> block, bool first, double tiny, Digest& digest) {
  const auto [low, high] = std::ranges::minmax(block);
  digest.min = first ? low : std::min(digest.min, low);
  digest.max = first ? high : std::max(digest.max, high);
  for (double x : block) {
    digest.zeros += x == 0;
    digest.subnormals += x != 0 && std::fabs(x) < tiny;
  }
}

}  // namespace

uint64_t hash_of(const void* bytes, size_t size) { return XXH3_64bits(bytes, size); }

Digest digest_of(const TensorView& tensor) {
  check(tensor.device == Device::cpu && (!tensor.empty() || tensor.count() == 0),
        "a digest is made of a tensor in host memory: copy this one ({}) there first",
        tensor.shape.text());
  Digest digest{.hash = hash_of(tensor.data, static_cast<size_t>(tensor.bytes())),
                .count = tensor.count()};
  const double tiny =
      is_float(tensor.dtype) ? std::ldexp(1.0, format_of(tensor.dtype).min_exponent) : 0;
  std::array<double, kBlock> room;
  int64_t finite = 0;
  for (int64_t begin = 0; begin < digest.count; begin += static_cast<int64_t>(kBlock)) {
    const auto size = std::min(kBlock, static_cast<size_t>(digest.count - begin));
    std::span<double> block(room.data(), size);
    widen(tensor, begin, block);
    for (size_t i = 0; i < size; ++i) {
      const double magnitude = std::fabs(block[i]);
      const bool larger = magnitude > digest.absmax || digest.absmax_index < 0;
      if (!larger || !std::isfinite(magnitude)) continue;
      digest.absmax = magnitude;
      digest.absmax_index = begin + static_cast<int64_t>(i);
    }
    block = block.first(sift(block, digest));
    if (block.empty()) continue;
    merge_extremes(block, finite == 0, tiny, digest);
    merge_moments(block, static_cast<double>(finite), digest);
    finite += static_cast<int64_t>(block.size());
  }
  return digest;
}

Digest digest_of_rows(std::span<const uint64_t> row_hashes, int64_t count) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  return {.hash = hash_of(row_hashes.data(), row_hashes.size_bytes()),
          .count = count,
          .nan = -1,
          .pos_inf = -1,
          .neg_inf = -1,
          .zeros = -1,
          .subnormals = -1,
          .min = kNone,
          .max = kNone,
          .absmax = kNone,
          .mean = kNone,
          .m2 = kNone,
          .sum_abs = kNone,
          .sum_squares = kNone};
}

bool is_of(const Digest& digest, const TensorView& tensor) {
  if (digest.has_numbers())
    return digest.hash == hash_of(tensor.data, static_cast<size_t>(tensor.bytes()));
  return digest.hash == digest_of_rows(row_hashes_of(tensor), tensor.count()).hash;
}

std::vector<uint64_t> row_hashes_of(const TensorView& tensor) {
  check(tensor.shape.rank() > 0 && tensor.device == Device::cpu,
        "rows were wanted of a tensor in host memory, found shape {}: copy it there first",
        tensor.shape.text());
  const auto size = static_cast<size_t>(tensor.row_size() * size_of(tensor.dtype));
  std::vector<uint64_t> hashes(static_cast<size_t>(tensor.rows()));
  for (size_t i = 0; i < hashes.size(); ++i)
    hashes[i] = hash_of(tensor.as<const char>() + i * size, size);
  return hashes;
}

}  // namespace lockstep
