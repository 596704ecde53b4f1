#include "kernels/base/dtype.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

// The value of 16 bits by the definition of a binary format, in double.
double decode(uint32_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double fraction = bits & ((1u << fraction_bits) - 1);
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign *
         std::ldexp(std::ldexp(1, fraction_bits) + fraction, exponent - bias - fraction_bits);
}

// Checks a 16-bit dtype over all its patterns: what they mean, that a value comes back as itself,
// and how everything between two neighbours is rounded.
template <typename T>
void expect_format(DType dtype, int exponent_bits) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const T x{static_cast<uint16_t>(bits)};
    const double value = decode(bits, exponent_bits);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(to_float(x)));
      ASSERT_TRUE(std::isnan(to_float(from_float<T>(to_float(x)))));
      ASSERT_TRUE(std::isnan(round_to(value, dtype)));
      continue;
    }
    ASSERT_EQ(static_cast<double>(to_float(x)), value) << bits;
    ASSERT_EQ(from_float<T>(static_cast<float>(value)).bits, bits);
    ASSERT_EQ(round_to(value, dtype), value);
    if (!std::isfinite(value) || bits >> 15) continue;
    const double next = bits + 1 == 0x8000u ? INFINITY : decode(bits + 1, exponent_bits);
    if (std::isfinite(next)) {
      ASSERT_EQ(ulp(value, dtype), next - value) << value;
    }
    // The neighbour of the largest number, for rounding, is where one more step would lead.
    const double half = value + ulp(value, dtype) / 2;
    const double even = bits % 2 == 0 ? value : next;
    const auto rounds = [&](double from, double to) {
      EXPECT_EQ(round_to(from, dtype), to) << from;
      EXPECT_EQ(round_to(-from, dtype), -to) << from;
      const auto single = static_cast<float>(from);
      if (static_cast<double>(single) != from)
        return;  // subnormals of bf16 have halves beyond fp32
      EXPECT_EQ(static_cast<double>(to_float(from_float<T>(single))), to) << from;
      EXPECT_EQ(static_cast<double>(to_float(from_float<T>(-single))), -to) << from;
    };
    rounds(half, even);
    rounds(half - ulp(half, DType::f32), value);
    rounds(half + ulp(half, DType::f32), next);
  }
}

TEST(DType, Fp16IsWhatItsDefinitionSays) { expect_format<Float16>(DType::f16, 5); }

TEST(DType, Bf16IsWhatItsDefinitionSays) { expect_format<BFloat16>(DType::bf16, 8); }

TEST(DType, SignsOfZeroAndInfinityAreKept) {
  EXPECT_EQ(from_float<Float16>(-0.0f).bits, 0x8000);
  EXPECT_EQ(from_float<BFloat16>(-0.0f).bits, 0x8000);
  EXPECT_EQ(from_float<Float16>(-INFINITY).bits, 0xfc00);
  EXPECT_EQ(from_float<BFloat16>(1e-45f).bits, 0);
  EXPECT_TRUE(std::signbit(round_to(-0.0, DType::bf16)));
  EXPECT_EQ(round_to(-INFINITY, DType::f16), -INFINITY);
}

TEST(DType, UlpIsTheDistanceOfNeighbours) {
  EXPECT_EQ(ulp(1.0, DType::f32), 0x1p-23);
  EXPECT_EQ(ulp(-1.5, DType::bf16), 0x1p-7);
  EXPECT_EQ(ulp(0, DType::f32), 0x1p-149);
  EXPECT_EQ(ulp(0, DType::f16), 0x1p-24);
  EXPECT_EQ(ulp(1.0, DType::f64), 0x1p-52);
  EXPECT_EQ(ulp(INFINITY, DType::f16), 32);
  EXPECT_EQ(ulp(0, DType::f64), 0x1p-1074);
  EXPECT_EQ(ulp(0x1p33, DType::f16), 0x1p23);  // as if there were such numbers
  EXPECT_EQ(round_to(-1e300, DType::bf16), -INFINITY);
  EXPECT_EQ(unit_roundoff(DType::f32), 0x1p-24);
  EXPECT_EQ(round_to(1 + 0x1p-24, DType::f32), 1);
}

TEST(DType, NamesComeBack) {
  for (const DType dtype :
       {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8}) {
    EXPECT_EQ(dtype_from(name_of(dtype)), dtype);
    EXPECT_GT(size_of(dtype), 0);
    if (!is_float(dtype)) {
      EXPECT_THROW(format_of(dtype), Error);
    }
  }
  EXPECT_TRUE(is_dtype("bf16"));
  EXPECT_FALSE(is_dtype("fp8"));
  EXPECT_FALSE(is_dtype(""));
  EXPECT_THROW(dtype_from("fp8"), Error);
  EXPECT_THROW(dtype_from(""), Error);
}

}  // namespace
}  // namespace lockstep
