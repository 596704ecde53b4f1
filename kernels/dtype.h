#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace lockstep {

// How one element of a tensor is stored. f64 is for references and oracles only: no engine op
// takes it.
enum class DType : uint8_t { f64, f32, f16, bf16, i64, i32, u8 };

int64_t size_of(DType dtype);             // bytes of one element
std::string_view name_of(DType dtype);    // "fp64" "fp32" "fp16" "bf16" "int64" "int32" "uint8"
DType dtype_from(std::string_view name);  // of those names; throws Error on another
bool is_float(DType dtype);

// The binary floating-point format of a dtype: value = +-1.f x 2^e with `precision` significant
// bits (the leading one counted) and e in [min_exponent, max_exponent].
struct FloatFormat {
  int precision;     // bf16 8, fp16 11, fp32 24, fp64 53
  int min_exponent;  // of the smallest normal number
  double max;        // largest finite value
};
FloatFormat format_of(DType dtype);  // throws Error when it is no float

// u = 2^-precision: the largest relative error of one rounding to nearest.
double unit_roundoff(DType dtype);
// Distance between neighbours of `dtype` around |x|; that of the subnormals near zero.
double ulp(double x, DType dtype);
// x rounded to nearest even in `dtype`, as a double: overflows to +-Inf, keeps NaN and subnormals.
double round_to(double x, DType dtype);

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

// Rounds to nearest even. NaN stays NaN (quiet).
template <typename T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline BFloat16 from_float<BFloat16>(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
template <>
Float16 from_float<Float16>(float x);

}  // namespace lockstep
