#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

namespace lockstep {

// How one element of a tensor is stored. f64 is for references and oracles only: no engine op
// takes it.
enum class DType : uint8_t { f64, f32, f16, bf16, i64, i32, u8 };

int64_t size_of(DType dtype);             // bytes of one element
std::string_view name_of(DType dtype);    // "fp64" "fp32" "fp16" "bf16" "int64" "int32" "uint8"
bool is_dtype(std::string_view name);     // whether it is one of those names
DType dtype_from(std::string_view name);  // of those names; throws Error on another
bool is_float(DType dtype);

// The binary floating-point format of a dtype: value = +-1.f x 2^e with `precision` significant
// bits (the leading one counted) and e from min_exponent to that of the largest number.
struct FloatFormat {
  int precision;     // bf16 8, fp16 11, fp32 24, fp64 53
  int min_exponent;  // of the smallest normal number
  double max;        // largest finite value
};
[[noreturn]] void fail_no_float(DType dtype);
inline FloatFormat format_of(DType dtype) {  // throws Error when it is no float
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
      fail_no_float(dtype);
  }
}

// u = 2^-precision: the largest relative error of one rounding to nearest. Throws Error for a dtype
// that is no float.
double unit_roundoff(DType dtype);

// The next two are asked for every element that is judged, so they are inline and take the bits
// apart themselves: ilogb and scalbn of the C library were a fifth of the time of a judgement.

// Distance between neighbours of `dtype` around |x|; that of the subnormals near zero.
inline double ulp(double x, DType dtype) {
  const FloatFormat f = format_of(dtype);
  const auto bits = std::bit_cast<uint64_t>(std::isfinite(x) ? std::fabs(x) : f.max);
  // The exponent that is stored is biased by 1023; zeros and subnormals of fp64 are below any
  // other.
  const int exponent = std::max(static_cast<int>(bits >> 52) - 1023, f.min_exponent);
  const int spacing = exponent - f.precision + 1;
  if (spacing < -1022) return std::ldexp(1.0, spacing);  // itself a subnormal of fp64
  return std::bit_cast<double>(static_cast<uint64_t>(spacing + 1023) << 52);
}

// x rounded to nearest even in `dtype`, as a double: overflows to +-Inf, keeps NaN and subnormals.
inline double round_to(double x, DType dtype) {
  if (dtype == DType::f64 || !std::isfinite(x) || x == 0) return x;
  if (dtype == DType::f32) return static_cast<double>(static_cast<float>(x));
  const double infinity = std::copysign(std::numeric_limits<double>::infinity(), x);
  const double largest = format_of(dtype).max;
  // Far beyond the largest number the trick below would meet Inf in its shift; up to twice the
  // largest it rounds as anywhere else, and the result is compared with the largest.
  if (std::fabs(x) >= 2 * largest) return infinity;
  // Beside 1.5 * 2^52 spacings, fp64 has room for whole spacings only: the addition rounds to
  // them, halves to even, and the subtraction is exact.
  const double shift = 0x1.8p52 * ulp(x, dtype);
  const double rounded = std::copysign((x + shift) - shift, x);
  return std::fabs(rounded) > largest ? infinity : rounded;
}

// bfloat16: the upper half of an fp32.
struct BFloat16 {
  uint16_t bits = 0;
};
// IEEE 754 binary16.
struct Float16 {
  uint16_t bits = 0;
};

inline float to_float(float x) { return x; }
inline float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
float to_float(Float16 x);

Float16 to_float16(float x);

// Rounds to nearest even. NaN stays NaN (quiet).
template <typename T>
T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) return x;
  if constexpr (std::is_same_v<T, Float16>) return to_float16(x);
  if constexpr (std::is_same_v<T, BFloat16>) {
    const auto bits = std::bit_cast<uint32_t>(x);
    if (std::isnan(x)) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
    // To nearest, ties to even: half of the last place less one is added, and one more where the
    // last place is odd. A carry into the exponent is right, up to Inf.
    return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
  }
}

}  // namespace lockstep
