// Rounding of LibTorch's tensors against the rounding of single numbers by the engine's formats.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "reference/rounding.h"

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Numbers of all exponents that a dtype has and some beyond, halves between two of its numbers and
// what lies beside them, and those at the ends of fp64.
std::vector<double> numbers(DType dtype) {
  const FloatFormat format = format_of(dtype);
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> mantissa(1, 2);
  const double border = format.max + ulp(format.max, dtype) / 2;  // to Inf from here on
  std::vector<double> all = {0,
                             format.max,
                             5e-324,
                             0x1p-1022,
                             0x1p1023,
                             1.7e308,
                             kInfinity,
                             border,
                             std::nextafter(border, 0),
                             std::nextafter(border, kInfinity)};
  for (size_t i = 0, count = all.size(); i < count; ++i) all.push_back(-all[i]);
  const int top = std::ilogb(format.max) + 2;
  for (int exponent = format.min_exponent - format.precision - 2; exponent <= top; ++exponent)
    for (int i = 0; i < 20; ++i) {
      const double x = std::ldexp(mantissa(random), exponent);
      const double half = round_to(x, dtype) + ulp(x, dtype) / 2;
      for (const double y : {x, half, std::nextafter(half, 0), std::nextafter(half, kInfinity)})
        all.push_back(i % 2 ? y : -y);
    }
  all.push_back(std::numeric_limits<double>::quiet_NaN());
  return all;
}

class Grids : public testing::TestWithParam<DType> {};

TEST_P(Grids, RoundAsTheFormatDoes) {
  const std::vector<double> all = numbers(GetParam());
  ASSERT_GT(all.size(), 2000);
  const at::Tensor x = at::empty({std::ssize(all)}, at::kDouble);
  std::ranges::copy(all, x.mutable_data_ptr<double>());
  const at::Tensor y = Grid::of(GetParam()).rounded(x);
  const double* const got = y.const_data_ptr<double>();
  for (size_t i = 0; i < all.size(); ++i) {
    const double want = round_to(all[i], GetParam());
    if (std::isnan(want))
      EXPECT_TRUE(std::isnan(got[i])) << i;
    else
      EXPECT_EQ(std::bit_cast<uint64_t>(got[i]), std::bit_cast<uint64_t>(want)) << all[i];
  }
}

// Dense in another order, every other number of a row, one column, a part further on, one number
// many times, one alone, and none.
TEST_P(Grids, TakeTensorsOfAnyStrides) {
  const at::Tensor whole = at::empty({6, 8}, at::kDouble);
  for (int64_t i = 0; i < whole.numel(); ++i)
    whole.mutable_data_ptr<double>()[i] = std::sin(static_cast<double>(i + 1));
  for (const at::Tensor& x : {whole.t(), whole.slice(1, 0, 8, 2), whole.select(1, 3),
                              whole.slice(0, 2, 5), whole.select(1, 3).unsqueeze(1).expand({6, 5}),
                              whole.select(0, 1).select(0, 2), whole.slice(0, 2, 2)}) {
    const at::Tensor y = Grid::of(GetParam()).rounded(x).contiguous();
    const at::Tensor from = x.contiguous();
    ASSERT_EQ(y.sizes(), x.sizes());
    for (int64_t i = 0; i < from.numel(); ++i)
      EXPECT_EQ(y.const_data_ptr<double>()[i],
                round_to(from.const_data_ptr<double>()[i], GetParam()));
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Grids, testing::Values(DType::bf16, DType::f16, DType::f32),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// Bits are dropped by integers: half of the last one left is added, and one less where it is even.
TEST(Grid, OfAnyPrecisionRoundsToThatManyBits) {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> uniform(-3, 3);
  for (int precision = 2; precision <= 53; ++precision) {
    const at::Tensor x = at::empty({400}, at::kDouble);
    double* const from = x.mutable_data_ptr<double>();
    for (int i = 0; i < 400; ++i) from[i] = uniform(random);
    const at::Tensor y = Grid{precision, -1000, 0}.rounded(x);
    const int dropped = 53 - precision;
    for (int i = 0; i < 400; ++i) {
      auto bits = std::bit_cast<uint64_t>(from[i]);
      if (dropped > 0) bits += (uint64_t{1} << (dropped - 1)) - 1 + (bits >> dropped & 1);
      bits = bits >> dropped << dropped;
      EXPECT_EQ(std::bit_cast<uint64_t>(y.const_data_ptr<double>()[i]), bits) << precision;
    }
  }
}

// tf32 has the exponents of fp32, 11 bits, and no largest number here.
TEST(Grid, OfTf32RoundsToElevenBits) {
  const std::vector<double> from = {1 + 0x1p-11, 1 + 0x1.8p-10, 1 + 0x1.000001p-11, -3.14159};
  const std::vector<double> to = {1, 1 + 0x1p-9, 1 + 0x1p-10, -3.140625};
  const at::Tensor x = at::empty({std::ssize(from)}, at::kDouble);
  std::ranges::copy(from, x.mutable_data_ptr<double>());
  const at::Tensor y = kTf32.rounded(x);
  for (size_t i = 0; i < to.size(); ++i) EXPECT_EQ(y.const_data_ptr<double>()[i], to[i]) << from[i];
}

}  // namespace
}  // namespace lockstep
