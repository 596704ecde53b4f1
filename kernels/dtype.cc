#include "kernels/dtype.h"

#include <algorithm>
#include <limits>

#include "kernels/check.h"

namespace lockstep {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  int64_t size;
};
constexpr Row kDTypes[] = {
    {DType::f64, "fp64", 8},  {DType::f32, "fp32", 4},  {DType::f16, "fp16", 2},
    {DType::bf16, "bf16", 2}, {DType::i64, "int64", 8}, {DType::i32, "int32", 4},
    {DType::u8, "uint8", 1},
};

const Row& row_of(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }

}  // namespace

int64_t size_of(DType dtype) { return row_of(dtype).size; }

std::string_view name_of(DType dtype) { return row_of(dtype).name; }

DType dtype_from(std::string_view name) {
  for (const Row& row : kDTypes)
    if (row.name == name) return row.dtype;
  fail("dtype '{}' is not known: use fp32, bf16 or fp16", name);
}

bool is_float(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

FloatFormat format_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return {53, -1022, std::numeric_limits<double>::max()};
    case DType::f32:
      return {24, -126, std::numeric_limits<float>::max()};
    case DType::f16:
      return {11, -14, 65504.0};
    case DType::bf16:
      return {8, -126, 0x1.fep127};
    default:
      fail("a floating-point dtype was wanted, found {}", name_of(dtype));
  }
}

double unit_roundoff(DType dtype) { return std::ldexp(1.0, -format_of(dtype).precision); }

// Both are asked for every element that is judged, so they take the bits apart themselves: ilogb
// and scalbn of the C library are a fifth of the time of a judgement.
double ulp(double x, DType dtype) {
  const FloatFormat f = format_of(dtype);
  const auto bits = std::bit_cast<uint64_t>(std::isfinite(x) ? std::fabs(x) : f.max);
  // The exponent that is stored is biased by 1023; zeros and subnormals of fp64 are below any
  // other.
  const int exponent = std::max(static_cast<int>(bits >> 52) - 1023, f.min_exponent);
  const int spacing = exponent - f.precision + 1;
  if (spacing < -1022) return std::ldexp(1.0, spacing);  // itself a subnormal of fp64
  return std::bit_cast<double>(static_cast<uint64_t>(spacing + 1023) << 52);
}

double round_to(double x, DType dtype) {
  if (dtype == DType::f64 || !std::isfinite(x) || x == 0) return x;
  if (dtype == DType::f32) return static_cast<double>(static_cast<float>(x));
  const double infinity = std::copysign(std::numeric_limits<double>::infinity(), x);
  const double largest = format_of(dtype).max;
  if (std::fabs(x) >= 2 * largest) return infinity;
  // Beside 1.5 * 2^52 spacings, fp64 has room for whole spacings only: the addition rounds to
  // them, halves to even, and the subtraction is exact.
  const double shift = 0x1.8p52 * ulp(x, dtype);
  const double rounded = std::copysign((x + shift) - shift, x);
  return std::fabs(rounded) > largest ? infinity : rounded;
}

float to_float(Float16 x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u)  // Inf and NaN
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // 2^112 moves the exponent bias from 15 to 127 and normalises subnormals on the way.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

template <>
Float16 from_float<Float16>(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00u)};
  if (magnitude < 0x1p-14f) {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24
    const float shifted = magnitude + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  const uint32_t m = bits & 0x7fffffffu;
  const uint32_t rounded = m + 0xfffu + ((m >> 13) & 1u) - (112u << 23);
  return {static_cast<uint16_t>(sign | (rounded >> 13))};
}

}  // namespace lockstep
