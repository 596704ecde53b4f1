// A digest is made in one pass over the elements. Mean and m2 are made block by block and merged by
// Chan's formula, so that they do not cancel; the hash is XXH3 of the bytes. contradiction() holds
// the parts of a digest to each other, and to the numbers where they are there: counts and extremes
// exactly, sums to within what fp64 may lose.
#include "probes/digest.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

constexpr size_t kBlock = 1024;  // elements: the widened block stays in the first-level cache

// Exponent of |x| as an fp32 stores it: zeros and what is below its normal numbers in bin 0, NaN
// and Inf in bin 255.
size_t exponent_bin(double x) {
  const int biased = (std::bit_cast<uint64_t>(x) >> 52) & 0x7ff;
  return std::clamp(biased - 1023 + 127, 0, 255);
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

// The counts and the extremes, under the names of their columns.
constexpr std::pair<const char*, int64_t Digest::*> kCounts[] = {
    {"nan", &Digest::nan},
    {"posinf", &Digest::pos_inf},
    {"neginf", &Digest::neg_inf},
    {"zeros", &Digest::zeros},
    {"subnormal", &Digest::subnormals}};
constexpr std::pair<const char*, double Digest::*> kExtremes[] = {
    {"min", &Digest::min}, {"max", &Digest::max}, {"absmax", &Digest::absmax}};

// By how much, relative to the sum of sizes, two sums of n terms may differ.
double sums_are_off(int64_t n) { return 4 * (2 * static_cast<double>(n) + 8) * 0x1p-53; }

bool near(double a, double b, double most) {
  return a == b || (std::isnan(a) && std::isnan(b)) || std::fabs(a - b) <= most;
}

bool has_magnitude(const TensorView& tensor, int64_t at, double magnitude) {
  return at >= 0 && at < tensor.count() && std::fabs(value_at(tensor, at)) == magnitude;
}

}  // namespace

uint64_t hash_of(const void* bytes, size_t size) { return XXH3_64bits(bytes, size); }

Digest digest_of(const TensorView& tensor) {
  check(tensor.device == Device::cpu && (!tensor.empty() || tensor.count() == 0),
        "a digest is made of a tensor in host memory: copy this one ({}) there first",
        tensor.shape.text());
  Digest digest{.hash = hash_of(tensor.data, tensor.bytes()), .count = tensor.count()};
  const double tiny =
      is_float(tensor.dtype) ? std::ldexp(1.0, format_of(tensor.dtype).min_exponent) : 0;
  std::array<double, kBlock> room;
  int64_t finite = 0;
  for (int64_t begin = 0; begin < digest.count; begin += kBlock) {
    const auto size = std::min<size_t>(kBlock, digest.count - begin);
    std::span<double> block(room.data(), size);
    widen(tensor, begin, block);
    for (size_t i = 0; i < size; ++i) {
      const double magnitude = std::fabs(block[i]);
      const bool larger = magnitude > digest.absmax || digest.absmax_index < 0;
      if (!larger || !std::isfinite(magnitude)) continue;
      digest.absmax = magnitude;
      digest.absmax_index = begin + i;
    }
    block = block.first(sift(block, digest));
    if (block.empty()) continue;
    merge_extremes(block, finite == 0, tiny, digest);
    merge_moments(block, static_cast<double>(finite), digest);
    finite += block.size();
  }
  return digest;
}

// -1 and NaN stand for what hashes do not tell.
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

std::string_view contradiction(const Digest& digest, const TensorView& tensor) {
  const Digest own = digest.has_numbers() ? digest_of(tensor)
                                          : digest_of_rows(row_hashes_of(tensor), tensor.count());
  if (digest.hash != own.hash) return "xxh3";
  if (digest.count != own.count) return "n";
  for (const auto& [name, count] : kCounts)
    if (digest.*count != own.*count) return name;
  if (!digest.has_numbers()) return {};
  for (const auto& [name, number] : kExtremes)
    if (digest.*number != own.*number) return name;
  if (own.finite() > 0 && !has_magnitude(tensor, digest.absmax_index, own.absmax))
    return "absmax_at";
  if (digest.exponents != own.exponents) return "exponent_count";
  const double off = sums_are_off(own.count), mean_of = static_cast<double>(own.finite());
  if (!near(digest.mean, own.mean, off * own.sum_abs / std::max(mean_of, 1.0))) return "mean";
  if (!near(digest.m2, own.m2, off * own.sum_squares)) return "m2";
  if (!near(digest.sum_abs, own.sum_abs, off * own.sum_abs)) return "sum_abs";
  if (!near(digest.sum_squares, own.sum_squares, off * own.sum_squares)) return "sum_squares";
  return {};
}

std::string_view contradiction(const Digest& digest, int64_t count, double rms,
                               std::span<const uint64_t> row_hashes) {
  if (digest.count != count) return "n";
  if (!digest.has_numbers()) {
    for (const auto& [name, of] : kCounts)
      if (digest.*of != -1) return name;
    const bool of_rows = hash_of(row_hashes.data(), row_hashes.size_bytes()) == digest.hash;
    return of_rows || row_hashes.empty() ? "" : "xxh3";
  }
  for (const auto& [name, of] : kCounts)
    if (digest.*of < 0 || digest.*of > count) return name;
  if (digest.finite() < 0) return "nan";
  if (std::reduce(digest.exponents.begin(), digest.exponents.end(), int64_t{0}) != count)
    return "exponent_count";
  if (!near(rms, digest.rms(), sums_are_off(count) * digest.rms())) return "rms";
  return {};
}

std::vector<uint64_t> row_hashes_of(const TensorView& tensor) {
  check(tensor.shape.rank() > 0 && tensor.device == Device::cpu,
        "rows were wanted of a tensor in host memory, found shape {}: copy it there first",
        tensor.shape.text());
  const size_t size = tensor.row_size() * size_of(tensor.dtype);
  std::vector<uint64_t> hashes(tensor.rows());
  for (size_t i = 0; i < hashes.size(); ++i)
    hashes[i] = hash_of(tensor.as<const char>() + i * size, size);
  return hashes;
}

}  // namespace lockstep
