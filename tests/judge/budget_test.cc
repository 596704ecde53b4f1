// Every formula against numbers worked out by hand.
#include "src/judge/budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>

#include "kernels/base/check.h"
#include "src/judge/limits.h"
#include "src/judge/ops/judged_op.h"
#include "src/stats/roundoff.h"
#include "src/stats/statistics.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

constexpr double kU = 0x1p-24;

TEST(Budget, OfALinearOp) {
  const Exact exact{.shape = {1, 2}, .want = {1.0, 0.0}, .terms = 64, .magnitude = {10, 3}};
  const Budget b = budget_of(OpKind::linear, exact, DType::bf16);
  EXPECT_DOUBLE_EQ(b.limit[0], 0x1p-8 + 8 * 8 * kU * 10);
  EXPECT_DOUBLE_EQ(b.variance[0], 0x1p-14 / 12 + std::pow(0.34 * 8 * kU * 10, 2));
  // An error of s before the store crosses a border with a chance of s / ulp.
  EXPECT_DOUBLE_EQ(b.misround[0], 0.34 * 8 * kU * 10 / 0x1p-7);
  // At zero the spacing is that of the subnormals, and the accumulation remains.
  const double walk = 8 * 8 * kU * 3;
  EXPECT_DOUBLE_EQ(b.limit[1], walk + ulp(walk, DType::bf16) / 2);
  EXPECT_GT(b.variance[1], 0);
}

// The most that a share of misrounds may be is of results of a usual size; where products nearly
// cancel it is what rows that are nearly alike have in common.
TEST(Budget, OfASumThatCancelsHasMisroundsAsItsSpacingIsFiner) {
  constexpr double kUsual = 10.0 / 64;  // S / sqrt(n)
  const Exact exact{.shape = {1, 4},
                    .want = {kUsual * 2, kUsual / 2, kUsual / 16, 0},
                    .terms = 4096,
                    .magnitude = {10, 10, 10, 0}};
  const auto of = [&](DType dtype) { return budget_of(OpKind::linear, exact, dtype).misround; };
  const double deviation = 0.34 * 64 * kU * 10, common = 0.135 * 64 * kU * 10;
  EXPECT_DOUBLE_EQ(of(DType::bf16)[0], deviation / ulp(kUsual * 2, DType::bf16));
  EXPECT_LT(of(DType::bf16)[0], 0.02);
  EXPECT_DOUBLE_EQ(of(DType::bf16)[1], 0.02);
  EXPECT_LT(0.02, deviation / ulp(kUsual / 2, DType::bf16));
  EXPECT_DOUBLE_EQ(of(DType::f16)[1], 0.10);
  EXPECT_DOUBLE_EQ(of(DType::bf16)[2], common / ulp(kUsual / 16, DType::bf16));
  EXPECT_DOUBLE_EQ(of(DType::f16)[2], common / ulp(kUsual / 16, DType::f16));
  EXPECT_EQ(of(DType::bf16)[3], 0);
  // Of few products the deviation is no more than that.
  const Exact few{.shape = {1, 1}, .want = {10.0 / 4096}, .terms = 256, .magnitude = {10}};
  EXPECT_DOUBLE_EQ(budget_of(OpKind::linear, few, DType::bf16).misround[0],
                   0.34 * 16 * kU * 10 / ulp(10.0 / 4096, DType::bf16));
  const Exact norm{.shape = {1, 1}, .want = {-3.0}, .terms = 16};
  EXPECT_DOUBLE_EQ(budget_of(OpKind::norm, norm, DType::f16).misround[0],
                   (0.34 * 4 / 2 + 3) * kU * 3 / ulp(3, DType::f16));
}

// Rows that are nearly alike, as attention's are where it takes means over many keys, have whole
// columns whose products cancel: here those of the first half of the terms and of the second.
TEST(Budget, OfAColumnThatCancelsLetsARightSumPass) {
  constexpr size_t kRows = 512, kTerms = 4096;
  std::mt19937 generator(5);
  std::normal_distribution<double> normal;
  const auto stored = [](double x) { return static_cast<float>(round_to(x, DType::bf16)); };
  std::vector<float> weights(kTerms);
  for (size_t k = 0; k < kTerms / 2; ++k) {
    weights[k] = stored(1 + 0.3 * normal(generator));
    weights[kTerms / 2 + k] = -weights[k];
  }
  std::vector<double> wants, magnitudes;
  double misrounded = 0;
  for (size_t row = 0; row < kRows; ++row) {
    double want = 0, magnitude = 0;
    float got = 0;  // one product after the other
    for (size_t k = 0; k < kTerms; ++k) {
      const float product = stored(1 + 0.05 * normal(generator)) * weights[k];  // exact
      want += product, magnitude += std::fabs(product), got += product;
    }
    wants.push_back(want), magnitudes.push_back(magnitude);
    misrounded += round_to(want, DType::bf16) != round_to(got, DType::bf16) ? 1 : 0;
  }
  const Exact exact{.shape = {kRows, 1}, .want = wants, .terms = kTerms, .magnitude = magnitudes};
  const Budget b = budget_of(OpKind::linear, exact, DType::bf16);
  const double may = std::accumulate(b.misround.begin(), b.misround.end(), 0.0) / kRows;
  EXPECT_GT(misrounded / kRows, share_limit(kRows, 0.02, 1e-12)) << "nothing cancels";
  EXPECT_LT(misrounded / kRows, share_limit(kRows, may, 1e-12)) << may;
  EXPECT_LT(may, 0.3) << "anything would pass";
}

// What of a silu of gates of that size fails, by a kernel that makes `of(gate, up)` in fp32.
template <typename Kernel>
std::string failing_of_silu(double size, const Kernel& of, size_t rows = 96) {
  constexpr size_t kColumns = 192;
  std::mt19937 generator(3);
  std::normal_distribution<double> normal;
  const auto stored = [](double x) { return static_cast<float>(round_to(x, DType::bf16)); };
  Meter meter({.row_shape = {kColumns}}, static_cast<int64_t>(rows));
  for (size_t row = 0; row < rows; ++row) {
    Exact exact{.shape = {1, kColumns}};
    std::vector<double> want, magnitude, factor, got;
    for (size_t i = 0; i < kColumns; ++i) {
      const float gate = stored(size * normal(generator)), up = stored(normal(generator));
      want.push_back(gate / (1 + std::exp(-double{gate})) * up);
      magnitude.push_back(std::fabs(double{gate} * up)), factor.push_back(up);
      got.push_back(stored(of(gate, up)));
    }
    exact.want = Numbers(want), exact.magnitude = Numbers(magnitude);
    exact.factor = Numbers(factor);
    const Budget b = budget_of(OpKind::silu_mul, exact, DType::bf16);
    meter.add(static_cast<int64_t>(row),
              {got, want, b.limit, b.variance, b.shared, b.misround, b.gain, b.carried,
               b.meets_borders, b.usual_misround, b.misround_in_gain});
  }
  const Measure measure = meter.finish();
  std::string failing;
  for (const Statistic& s : measure.statistics)
    if (!s.passes(1)) failing += name_of(s.kind) + (s.slice.empty() ? "" : " " + s.slice) + " ";
  return failing + std::to_string(measure.different) + " misrounded";
}

float usual_silu(float gate, float up) { return gate / (1 + std::exp(-gate)) * up; }

float silu_by_tanh(float gate, float up) { return 0.5F * gate * (1 + std::tanh(0.5F * gate)) * up; }

// Gates of 1e-6 have silus of half of them, times a number of 8 bits: products of 16 bits, of which
// one in 60 lies beside the border of two numbers, nearer than any kernel of fp32 can tell.
TEST(Budget, OfSmallGatesLetsARightSiluPass) {
  for (const int power : {-8, -16, -20, -24, -30, -46, -60}) {
    const double size = std::ldexp(1.0, power);
    EXPECT_EQ(failing_of_silu(size, usual_silu).find('T'), std::string::npos)
        << power << ": " << failing_of_silu(size, usual_silu);
    EXPECT_EQ(failing_of_silu(size, silu_by_tanh).find('T'), std::string::npos)
        << power << ": " << failing_of_silu(size, silu_by_tanh);
  }
  EXPECT_GT(std::stoi(failing_of_silu(0x1p-30, usual_silu)), 100) << "none lies beside a border";
}

// Such ties fall to even numbers in every kernel that loses gate / 4 beside 1/2, of which a pool of
// a layer has thousands.
TEST(Budget, OfSmallGatesTakesTiesThatFallToOneSideForNoGain) {
  for (const double size : {1e-7, 3e-7, 1e-6, 2e-6, 1e-5})
    EXPECT_EQ(failing_of_silu(size, usual_silu, 8000).find('T'), std::string::npos)
        << size << ": " << failing_of_silu(size, usual_silu, 8000);
  const auto larger = [](float gate, float up) { return usual_silu(gate, up) * (1 + 0x1p-14F); };
  EXPECT_NE(failing_of_silu(1e-6, larger).find("T5"), std::string::npos) << "a gain of all";
}

// From gates of 15 on silus are the gates themselves, and those of -10 are what a tanh near -1 was
// off by, which is no gain of the others.
TEST(Budget, OfLargeGatesLetsARightSiluPass) {
  const auto by_exp2 = [](float gate, float up) {
    return gate / (1 + std::exp2(gate * -1.44269504F)) * up;
  };
  // As NumPy's tanh in fp32 does, it comes to the lower neighbour more often.
  const auto by_low_tanh = [](float gate, float up) {
    const float tanh = std::tanh(0.5F * gate);
    const bool is_above = std::tanh(0.5 * double{gate}) < tanh;
    return 0.5F * gate * (1 + (is_above ? std::nextafter(tanh, -1.0F) : tanh)) * up;
  };
  for (const double size : {3, 8, 16}) {
    EXPECT_EQ(failing_of_silu(size, usual_silu, 8000).find('T'), std::string::npos)
        << size << ": " << failing_of_silu(size, usual_silu, 8000);
    EXPECT_EQ(failing_of_silu(size, by_exp2, 2000).find('T'), std::string::npos)
        << size << ": " << failing_of_silu(size, by_exp2, 2000);
    EXPECT_EQ(failing_of_silu(size, silu_by_tanh, 2000).find("T5"), std::string::npos)
        << size << ": " << failing_of_silu(size, silu_by_tanh, 2000);
    EXPECT_EQ(failing_of_silu(size, by_low_tanh, 2000).find("T5"), std::string::npos)
        << size << ": " << failing_of_silu(size, by_low_tanh, 2000);
  }
}

TEST(Budget, OfLargeGatesSeesAWrongSilu) {
  const auto larger = [](float gate, float up) { return usual_silu(gate, up) * (1 + 0x1p-14F); };
  const auto in_bf16 = [](float gate, float up) {
    const auto sigmoid = static_cast<float>(round_to(1 / (1 + std::exp(-gate)), DType::bf16));
    return gate * sigmoid * up;
  };
  const auto of_negatives = [](float gate, float up) {
    return usual_silu(gate, up) * (gate < -4 ? 1 + 0x1p-10F : 1);
  };
  for (const double size : {3, 8, 16}) {
    EXPECT_NE(failing_of_silu(size, larger, 400).find('T'), std::string::npos) << size;
    EXPECT_NE(failing_of_silu(size, in_bf16).find('T'), std::string::npos) << size;
    EXPECT_NE(failing_of_silu(size, of_negatives).find('T'), std::string::npos) << size;
  }
}

TEST(Budget, OfSmallGatesSeesAWrongSilu) {
  const auto a_half = [](float gate, float up) {
    return std::fabs(gate) < 0x1p-8F ? 0.5F * gate * up : usual_silu(gate, up);
  };
  for (const double size : {0x1p-9, 0x1p-12, 0x1p-16})
    EXPECT_NE(failing_of_silu(size, a_half).find('T'), std::string::npos) << size;
  const auto by_minus_gate = [](float gate, float up) { return gate / (1 + std::exp(gate)) * up; };
  for (const double size : {0x1p-9, 0x1p-16})
    EXPECT_NE(failing_of_silu(size, by_minus_gate).find('T'), std::string::npos) << size;
  const auto truncated = [](float gate, float up) {
    const uint32_t bits = std::bit_cast<uint32_t>(usual_silu(gate, up)) & 0xffff0000;
    return std::bit_cast<float>(bits);
  };
  for (const double size : {0x1p-9, 1e-6, 0x1p-40})
    EXPECT_NE(failing_of_silu(size, truncated).find('T'), std::string::npos) << size;
  // Ties that fp64 has too are no matter of arithmetic.
  const auto ties_outwards = [](float gate, float up) {
    const float x = usual_silu(gate, up);
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    return (bits & 0xffff) == 0x8000 ? std::bit_cast<float>(bits + 1) : x;
  };
  EXPECT_NE(failing_of_silu(0x1p-60, ties_outwards).find('T'), std::string::npos);
  // What is off by 64 u turns more than lies beside a border.
  const auto rough = [](float gate, float up) { return usual_silu(gate, up) * (1 + 0x1p-18F); };
  EXPECT_NE(failing_of_silu(1e-6, rough).find('T'), std::string::npos);
}

TEST(Budget, OfARowIsThatPartOfTheWhole) {
  const Exact exact{
      .shape = {2, 3}, .want = {1, 2, 3, 4, 5, 6}, .terms = 64, .magnitude = {9, 8, 7, 6, 5, 4}};
  const Budget all = budget_of(OpKind::linear, exact, DType::bf16);
  const auto of = [&](Elements elements) {
    return budget_of(OpKind::linear, exact, DType::bf16, elements);
  };
  ASSERT_EQ(all.limit.size(), 6);
  const Budget row = of({.first = 3, .count = 3});
  EXPECT_TRUE(std::ranges::equal(row.limit, std::span(all.limit).subspan(3)));
  EXPECT_TRUE(std::ranges::equal(row.variance, std::span(all.variance).subspan(3)));
  EXPECT_EQ(of({.first = 4}).limit.size(), 2);
  EXPECT_THROW(of({.first = 4, .count = 3}), Error);
  EXPECT_THROW(of({.first = 7}), Error);
}

TEST(Budget, OfANorm) {
  const Exact exact{.shape = {1, 1}, .want = {-3.0}, .terms = 16};
  const Budget b = budget_of(OpKind::norm, exact, DType::f32);
  EXPECT_DOUBLE_EQ(b.limit[0], 0x1p-23 + (8 * 4 / 2 + 8) * kU * 3);
  const double scale = std::pow((0.34 * 4 / 2 + 3) * kU * 3, 2);
  EXPECT_DOUBLE_EQ(b.variance[0], 0x1p-44 / 12 + scale);
  EXPECT_DOUBLE_EQ(b.shared[0], scale) << "the scale of a row is wrong for all of it";
}

// What a plain loop is off by is allowed for the whole row, and results of 16 bits are more often
// another number where they lie near the border of two.
TEST(Budget, OfANormHasWhatAPlainLoopIsOff) {
  const double near = 1 + 0x1p-8 + 0x1p-20, far = 1 + 0x1p-9;
  Exact exact{.shape = {1, 2}, .want = {near, far}, .terms = 5120};
  const Budget plain = budget_of(OpKind::norm, exact, DType::bf16);
  exact.serial_error = {100.0};
  const Budget loop = budget_of(OpKind::norm, exact, DType::bf16);
  const double walk = 0.34 * std::sqrt(5120.0) / 2 + 3, scale = std::hypot(walk, 50) * kU * far;
  EXPECT_DOUBLE_EQ(loop.shared[1], scale * scale);
  EXPECT_DOUBLE_EQ(loop.gain - plain.gain, 50 * kU);
  EXPECT_EQ(loop.limit, plain.limit) << "B has room for it";
  EXPECT_GT(loop.misround[0], 0.4);
  EXPECT_LT(loop.misround[1], 1e-3);
  exact.serial_error = {100.0, 100.0};
  EXPECT_THROW(budget_of(OpKind::norm, exact, DType::bf16), Error);
}

// Keys of equal scores have equal weights, and means of a few stored numbers lie on the border of
// two more often than one in so many. As far as fp64 can tell it, both are such a mean rounded, and
// to store a third number takes as much as anywhere.
TEST(Budget, OfAttentionKnowsWhatLiesOnTheBorder) {
  const double border = 0.25 + 0x1p-13, far = 0.25 + 0x1p-14;
  const std::vector<double> half(4, 0.5), little(4, 0.01);
  const Exact exact{.shape = {1, 1, 4},
                    .want = {border - 0x1p-36, far, border, border * (1 - 0x1p-53)},
                    .row_terms = {21},
                    .magnitude = half,
                    .spread = half,
                    .spread_squares = little,
                    .weighted_squares = little,
                    .score = {0}};
  const Budget b = budget_of(OpKind::attention, exact, DType::f16);
  EXPECT_TRUE(b.meets_borders);
  EXPECT_GT(b.misround[0], 0.4);
  EXPECT_LT(b.misround[1], 1e-2);
  EXPECT_LT(b.misround[2], 1e-2);
  EXPECT_LT(b.misround[3], 1e-2);
}

// Over results that lie anywhere the chance is what it was without a place.
TEST(Budget, TheChanceOfAnotherNumberIsKept) {
  for (const double chance : {1e-3, 0.02, 0.1}) {
    double sum = 0;
    constexpr int kPlaces = 200000;
    for (int i = 0; i < kPlaces; ++i)
      sum += turning_chance(1 + (i + 0.5) / kPlaces * 0x1p-7, chance, DType::bf16);
    EXPECT_NEAR(sum / kPlaces, chance, 0.01 * chance);
  }
}

TEST(Budget, OfRope) {
  const Exact exact{.shape = {1, 1, 1},
                    .want = {0.75},
                    .magnitude = {2},
                    .angle = {100},
                    .x1c_x2s = {1.5},
                    .turned = {0.5}};
  const Budget b = budget_of(OpKind::rope, exact, DType::f16);
  EXPECT_DOUBLE_EQ(b.limit[0], 0x1p-12 + 4 * kU * (2 + 100 * 0.5) + 8e4 * kU * kU * 0.75);
  EXPECT_DOUBLE_EQ(b.variance[0], 0x1p-22 / 12 + std::pow(0.85 * kU * 1.5, 2) +
                                      3 * std::pow(100 * kU * 0.5, 2) +
                                      0.75 * std::pow(3e4 * kU * kU * 0.75, 2));
}

TEST(Budget, OfAnglesIsThatOfTheirFrequency) {
  const Exact exact{.shape = {1, 1}, .want = {0.75}, .angle = {1000}, .turned = {0.5}};
  const Budget b = budget_of(OpKind::angles, exact, DType::f32);
  EXPECT_DOUBLE_EQ(b.limit[0], 0x1p-25 + (4 * 1000 * 0.5 + 4 * 0.75) * kU + 8e6 * kU * kU * 0.75);
  EXPECT_DOUBLE_EQ(b.variance[0], 0x1p-48 / 12 + kU * kU * (3 * 500.0 * 500.0 + 0.75 * 0.75) +
                                      0.75 * std::pow(3e6 * kU * kU * 0.75, 2));
}

// Where a cosine or a sine is nearly 1 an angle moves it by its curve alone.
TEST(Budget, OfAnglesHoldsForThoseOfFp32AtLongPositions) {
  constexpr int kDim = 128, kBase = 1000000;
  int64_t curved = 0;  // over what the derivative alone allows
  for (int position = 17000; position <= 131072; position += position < 18000 ? 1 : 37)
    for (int j = 0; j < kDim / 2; ++j) {
      const float exponent = static_cast<float>(2 * j) / kDim;
      const float angle =
          static_cast<float>(position) * (1 / std::pow(static_cast<float>(kBase), exponent));
      const double exact = position * std::pow(kBase, -2.0 * j / kDim);
      const double cos = std::cos(exact), sin = std::sin(exact);
      const Exact of{.shape = {1, 2},
                     .want = {cos, sin},
                     .angle = {exact, exact},
                     .turned = {std::fabs(sin), std::fabs(cos)}};
      const Budget b = budget_of(OpKind::angles, of, DType::f32);
      const double off[] = {std::fabs(std::cos(angle) - cos), std::fabs(std::sin(angle) - sin)};
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_LE(off[i], b.limit[i]) << position << " " << j << " " << i;
        curved += off[i] > 4 * kU * (exact * of.turned[i] + 2 * std::fabs(of.want[i]));
      }
    }
  EXPECT_GT(curved, 0);
}

TEST(Budget, OfSilu) {
  const Exact exact{.shape = {1}, .want = {5.0}, .magnitude = {8.0}, .factor = {2.0}};
  const Budget b = budget_of(OpKind::silu_mul, exact, DType::f32);
  EXPECT_DOUBLE_EQ(b.limit[0], 0x1p-22 + (16 * 5 + 8) * kU);
  EXPECT_DOUBLE_EQ(b.variance[0], 0x1p-42 / 12 + std::pow(15 * kU, 2) + std::pow(2.4 * kU, 2));
  EXPECT_TRUE(std::isinf(b.misround_in_gain)) << "in fp32 most are misrounded, and T5 sees them";
}

// gate / 2 (1 + t) up in fp32, by a tanh t that is off by so many u: what is left of 1 + t where
// the gate is negative.
TEST(Budget, OfSiluAllowsASigmoidByTanhAndNoMore) {
  const float up = 1.7F;
  double worst = 0, squares = 0, of_rough = 0;
  int count = 0;
  for (float gate = -14; gate < 4; gate += 0.00037F, ++count) {
    const double want = gate / (1 + std::exp(-static_cast<double>(gate))) * up;
    const Exact exact{
        .shape = {1}, .want = {want}, .magnitude = {std::fabs(gate * up)}, .factor = {up}};
    const Budget b = budget_of(OpKind::silu_mul, exact, DType::f32);
    const auto off = [&](float t) { return std::fabs(0.5F * gate * (1 + t) * up - want); };
    const float tanh = std::tanh(0.5F * gate);
    worst = std::max(worst, off(tanh) / b.limit[0]);
    squares += std::pow(off(tanh), 2) / b.variance[0];
    of_rough = std::max(of_rough, off(tanh + 4 * static_cast<float>(kU)) / b.limit[0]);
  }
  EXPECT_LT(worst, 1);
  EXPECT_LT(squares / count, 1);
  EXPECT_GT(of_rough, 1.5) << "a tanh that is off by 4 u is no good one";
}

// x / (1 + exp(-x)) in fp32, as kernels have it, is 0 from -88.8 on; its exact value is a normal
// number until -91.9.
TEST(Budget, OfSiluAllowsItsExponentialToOverflow) {
  const double up = -3;
  for (const float gate : {-80.f, -88.f, -88.8f, -90.f, -95.f, -103.f, -110.f}) {
    const double want = gate / (1 + std::exp(-static_cast<double>(gate))) * up;
    const double got = gate / (1 + std::exp(-gate)) * static_cast<float>(up);
    const Exact exact{
        .shape = {1}, .want = {want}, .magnitude = {std::fabs(gate * up)}, .factor = {up}};
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Budget b = budget_of(OpKind::silu_mul, exact, dtype);
      EXPECT_LE(std::fabs(round_to(got, dtype) - want), b.limit[0]) << gate;
      EXPECT_LE(std::pow(round_to(got, dtype) - want, 2), 16 * b.variance[0]) << gate;
      if (gate > -88.7f) continue;
      tighten(b, exact.want, dtype, {.inner = 0.01});  // learnt where no gate was that small
      EXPECT_LE(std::fabs(round_to(got, dtype) - want), b.limit[0]) << gate;
    }
  }
  const Exact lost{.shape = {1}, .want = {1e-30}, .magnitude = {1e-30}, .factor = {1}};
  EXPECT_LT(budget_of(OpKind::silu_mul, lost, DType::f32).limit[0], 1e-35) << "no more than that";
}

TEST(Budget, OfWeightsOfExperts) {
  const Exact exact{.shape = {1, 1}, .want = {0.75}, .terms = 16, .magnitude = {3}};
  const Budget b = budget_of(OpKind::softmax, exact, DType::f32);
  EXPECT_DOUBLE_EQ(b.limit[0], 0x1p-25 + (16 + 2 * 3 + 8 * 4) * kU * 0.75);
  EXPECT_DOUBLE_EQ(b.variance[0], 0x1p-48 / 12 + std::pow((3 + 0.3 * (3 + 4)) * kU * 0.75, 2));
}

// Operands that are known but for an error may be rounded to tf32 the other way.
TEST(Budget, OfOperandsThatAreNotKnownHoldsTheirRoundings) {
  Exact exact{.shape = {1, 2}, .want = {1.0, -2.0}, .terms = 9, .magnitude = {12, 3}};
  const std::vector<double> variance = {1e-16, 1e-16};
  const auto limit_of = [&](RoundingContract contract) {
    exact.contract = contract;
    Budget b = budget_of(OpKind::linear, exact, DType::f32);
    widen(b, exact, 0, variance, DType::f32);
    return b.limit[0];
  };
  using enum RoundingContract;
  EXPECT_NEAR(limit_of(tf32) - limit_of(fused), 12 * 0x1p-10, 1e-9);
  EXPECT_NEAR(limit_of(operands_bf16) - limit_of(fused), 12 * 0x1p-7, 1e-9);
}

TEST(Budget, OfExpertsIsThatOfALinearOp) {
  const Exact exact{.shape = {1, 2}, .want = {1.0, -2.0}, .terms = 9, .magnitude = {10, 3}};
  const Budget linear = budget_of(OpKind::linear, exact, DType::bf16);
  for (const OpKind op : {OpKind::expert_linear, OpKind::weighted_sum}) {
    EXPECT_EQ(budget_of(op, exact, DType::bf16).limit, linear.limit);
    EXPECT_EQ(budget_of(op, exact, DType::bf16).variance, linear.variance);
  }
}

TEST(Budget, OfAttentionTakesItsScoresByRowAndHead) {
  std::vector<double> want(16, 1.0);
  want[15] = 0;  // the rounding of the output vanishes beside the rest
  Exact exact{.shape = {2, 2, 4}, .want = want};
  exact.row_terms = {4, 9};
  exact.score = {1, 2, 3, 40};
  exact.magnitude = std::vector(16, 2.0);
  exact.spread = std::vector(16, 0.5);
  exact.spread_squares = std::vector(16, 0.04);
  exact.weighted_squares = std::vector(16, 0.3);
  const Budget b = budget_of(OpKind::attention, exact, DType::bf16);
  const double ds = 2 * kU * 40 + 4 * kU;  // of the last row and head: sqrt(4 dims) u score + 4 u
  EXPECT_DOUBLE_EQ(b.limit[14], 0x1p-8 + 16 * ds * 0.5 + 8 * 3 * kU * 2);
  EXPECT_DOUBLE_EQ(b.limit[15], 16 * ds * 0.5 + 8 * 3 * kU * 2 +
                                    ulp(16 * ds * 0.5 + 8 * 3 * kU * 2, DType::bf16) / 2);
  const double es = (0.34 * 2 + 1) * kU * 40 + 4 * kU;
  const double sum = 2 * kU * kU * 9 * 0.3 / 6;
  EXPECT_NEAR(b.variance[15], es * es * 0.04 + sum, 1e-6 * sum);
  EXPECT_NEAR(b.shared[15], es * es * 0.04, 1e-6 * sum);
  const double whole = std::pow((2 + 40 + std::log(9.0)) * kU, 2);  // o is 1
  EXPECT_NEAR(b.shared[14] - b.shared[15], whole, 1e-6 * whole);
  EXPECT_LT(b.limit[0], b.limit[14]);
}

TEST(Budget, OfACopyIsHalfASpacing) {
  const Exact exact{.shape = {3}, .want = {1, 0, 1e-41}};
  const Budget b = budget_of(OpKind::add, exact, DType::f16);
  EXPECT_EQ(b.limit[0], 0x1p-11);
  EXPECT_EQ(b.limit[1], 0x1p-25);  // half the smallest number of fp16
  EXPECT_EQ(b.limit[2], 0x1p-25);
}

TEST(Budget, SaysWhatElementsMayHaveInCommon) {
  const Exact exact{.shape = {1, 1}, .want = {1}, .terms = 192, .magnitude = {1}};
  EXPECT_EQ(budget_of(OpKind::linear, exact, DType::bf16).gain, 12 * 0x1p-23);
  EXPECT_EQ(budget_of(OpKind::norm, {.shape = {1}, .want = {1}, .terms = 4}, DType::f32).gain,
            0x1p-21);
  EXPECT_EQ(budget_of(OpKind::silu_mul,
                      {.shape = {1}, .want = {1}, .magnitude = {1}, .factor = {1}}, DType::f32)
                .gain,
            0x1p-21);
  EXPECT_EQ(budget_of(OpKind::linear, exact, DType::bf16).misrounds, 0.02);
  EXPECT_EQ(budget_of(OpKind::linear, exact, DType::f16).misrounds, 0.10);
  EXPECT_EQ(budget_of(OpKind::linear, exact, DType::f32).misrounds, 1);
}

// A kernel that rounds a value on the way, in fp32, beside the exact chain.
struct Chain {
  Exact exact;
  std::vector<double> got;
};

// off: how far the kernel's inner values are from the exact ones, in units of 2^-24 of them.
Chain chain_of(DType dtype, double off, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  constexpr int64_t kCount = 50000;
  std::vector<double> got, want, inner, factor, gates, products;
  const auto r = [dtype](double x) { return round_to(x, dtype); };
  for (int64_t i = 0; i < kCount; ++i) {
    factor.push_back(r(normal(random)));
    inner.push_back(normal(random));
    gates.push_back(2 * std::fabs(inner.back()));  // of a silu: its sigmoid is a half
    want.push_back(r(inner.back()) * factor.back());
    got.push_back(r(r(inner.back() * (1 + off * kU * normal(random))) * factor.back()));
  }
  Exact e{.contract = RoundingContract::hf, .shape = {kCount}, .want = want, .terms = 1024};
  e.factor = factor;
  for (size_t i = 0; i < gates.size(); ++i) products.push_back(std::fabs(gates[i] * factor[i]));
  e.magnitude = products;
  e.steps = {{inner, factor, gates}};
  return {e, got};
}

Meter meter_of(DType dtype, int64_t width) {
  return Meter({.dtype = dtype, .row_shape = {width}}, 1);
}

TEST(Steps, AllowAnotherNumberOnlyNearATie) {
  for (const OpKind op : {OpKind::norm, OpKind::silu_mul})
    for (const DType dtype : {DType::bf16, DType::f16}) {
      const auto [exact, got] = chain_of(dtype, 1, 5);
      const Budget b = budget_of(op, exact, dtype);
      size_t near = 0, other = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_LE(std::fabs(got[i] - exact.want[i]), b.limit[i]) << static_cast<int>(op);
        near += b.limit[i] > ulp(exact.want[i], dtype);
        other += got[i] != round_to(exact.want[i], dtype);
      }
      // One element in a hundred may be another at all, and one in ten thousand is.
      EXPECT_LT(static_cast<double>(near) / static_cast<double>(got.size()), 0.05);
      EXPECT_LT(static_cast<double>(other) / static_cast<double>(got.size()), 1e-3);
      Meter meter = meter_of(dtype, std::ssize(got));
      meter.add(0, {got, exact.want, b.limit, b.variance, b.shared, b.misround, b.gain});
      for (const Statistic& s : meter.finish().statistics)
        EXPECT_TRUE(s.passes(1)) << name_of(s.kind);
    }
}

TEST(Steps, OfAKernelThatDoesNotRoundThereAreSeen) {
  for (const OpKind op : {OpKind::norm, OpKind::silu_mul}) {
    const auto [exact, got] = chain_of(DType::bf16, 1, 5);
    const Budget b = budget_of(op, exact, DType::bf16);
    std::vector<double> fused;
    for (size_t i = 0; i < got.size(); ++i)
      fused.push_back(round_to(exact.steps[0].value[i] * exact.factor[i], DType::bf16));
    Meter meter = meter_of(DType::bf16, std::ssize(fused));
    meter.add(0, {fused, exact.want, b.limit, b.variance, b.shared, b.misround, b.gain});
    std::string failing;
    for (const Statistic& s : meter.finish().statistics)
      if (!s.passes(1)) failing += name_of(s.kind);
    EXPECT_NE(failing.find("T1"), std::string::npos);
    EXPECT_NE(failing.find("T3"), std::string::npos);
  }
}

// Inner values 200 u off, as of a sum in fewer bits, are within B near a tie and too many.
TEST(Steps, TooManyTiesTakenTheOtherWayAreSeen) {
  const auto [exact, got] = chain_of(DType::bf16, 200, 7);
  const Budget b = budget_of(OpKind::silu_mul, exact, DType::bf16);
  Meter meter = meter_of(DType::bf16, std::ssize(got));
  meter.add(0, {got, exact.want, b.limit, b.variance, b.shared, b.misround, b.gain});
  bool misrounds = false;
  for (const Statistic& s : meter.finish().statistics)
    misrounds = misrounds || (s.kind == StatisticKind::misrounds && !s.passes(1));
  EXPECT_TRUE(misrounds);
}

TEST(Contracts, OfAttentionGiveEachWeightARoundingOfItsOwn) {
  Exact exact{.shape = {1, 1, 2}, .want = {1, 1}, .row_terms = {4}, .magnitude = {2, 2}};
  exact.spread = {0.5, 0.5}, exact.spread_squares = {0.1, 0.1}, exact.score = {3};
  exact.weighted_squares = {0.25, 0.25};
  const Budget fused = budget_of(OpKind::attention, exact, DType::bf16);
  exact.contract = RoundingContract::hf;
  EXPECT_THROW(budget_of(OpKind::attention, exact, DType::bf16), Error) << "no overlap";
  exact.overlap = {0.09};
  const Budget hf = budget_of(OpKind::attention, exact, DType::bf16);
  EXPECT_NEAR(hf.limit[0] - fused.limit[0], 0.6 * 8 * 0x1p-8 * 0.5, 1e-12);
  EXPECT_NEAR(hf.variance[0] - fused.variance[0], 0x1p-20, 1e-15);
  EXPECT_NEAR(hf.shared[0] - fused.shared[0], 0.3 * 0x1p-20, 1e-15);
  exact.contract = RoundingContract::eager;
  exact.ties = {0.125, 0}, exact.tie_squares = {0x1p-10, 0};
  const Budget eager = budget_of(OpKind::attention, exact, DType::bf16);
  EXPECT_NEAR(eager.limit[0] - fused.limit[0], 0.125, 1e-12);
  EXPECT_NEAR(eager.variance[0] - fused.variance[0], 0x1p-10, 1e-15);
  EXPECT_EQ(eager.limit[1], fused.limit[1]);
}

// Those of shares round weights to the dtype of the run, whatever they are stored in themselves.
TEST(Contracts, OfSharesRoundToTheDtypeOfTheRun) {
  Exact exact{.shape = {1, 1, 1, 2}, .want = {1, 1}, .row_terms = {4}, .magnitude = {2, 2}};
  exact.spread = {0.5, 0.5}, exact.spread_squares = {0.1, 0.1}, exact.score = {3};
  exact.weighted_squares = {0.25, 0.25}, exact.overlap = {0.09};
  const auto partial = [&] {
    return budget_of(OpKind::partial_attention, exact, DType::f32, {}, DType::bf16);
  };
  const Budget fused = partial();
  exact.contract = RoundingContract::hf;
  const Budget hf = partial();
  EXPECT_NEAR(hf.limit[0] - fused.limit[0], 0.6 * 8 * 0x1p-8 * 0.5, 1e-9);
  EXPECT_NEAR(hf.variance[0] - fused.variance[0], 0x1p-18 / 3, 1e-15);
  EXPECT_NEAR(hf.shared[0] - fused.shared[0], 0.3 * 0x1p-18 / 3, 1e-15);
  EXPECT_LT(budget_of(OpKind::partial_attention, exact, DType::f32).limit[0], 1e-4);

  Exact lse{.shape = {1, 1, 1}, .want = {2}, .terms = 64, .row_terms = {4}, .score = {3}};
  const auto logarithm = [&] {
    return budget_of(OpKind::log_sum_exp, lse, DType::f32, {}, DType::bf16);
  };
  const Budget plain = logarithm();
  lse.contract = RoundingContract::hf;
  EXPECT_THROW(logarithm(), Error) << "no squares of weights";
  lse.weighted_squares = {0.25};
  EXPECT_NEAR(logarithm().limit[0] - plain.limit[0], 0.6 * 8 * 0x1p-8 * 0.5, 1e-9);
  EXPECT_NEAR(logarithm().variance[0] - plain.variance[0], 0x1p-18 / 3, 1e-15);
}

TEST(Budget, IsRefusedWithoutItsMagnitudes) {
  const Exact exact{.shape = {2}, .want = {1, 2}, .terms = 3, .magnitude = {1}};
  EXPECT_NE(error_of([&] { budget_of(OpKind::linear, exact, DType::bf16); }).find("oracle"),
            std::string::npos);
  EXPECT_THROW(budget_of(OpKind::rope, exact, DType::bf16), Error);
  EXPECT_THROW(budget_of(OpKind::attention, exact, DType::bf16), Error);
  EXPECT_THROW(budget_of(OpKind::softmax, exact, DType::bf16), Error);
  EXPECT_THROW(budget_of(OpKind::angles, exact, DType::bf16), Error);
  Exact step{.shape = {1}, .want = {1}, .terms = 4};
  step.steps = {{{1, 2}, {}, {}}};
  EXPECT_THROW(budget_of(OpKind::norm, step, DType::bf16), Error);
  EXPECT_THROW(budget_of(OpKind::top_k, exact, DType::bf16), Error);
  EXPECT_THROW(budget_of(OpKind::cache, exact, DType::bf16), Error);
}

// By tanh: 0.3 u of the sigmoid's own scale, and the sigmoid of -4 is 0.018.
TEST(JudgedOp, ARightSiluOfSmallSigmoidsIsOffByMoreThanOneOfLargeOnes) {
  const auto usual = [](std::vector<double> gates) {
    return judged_op(OpKind::silu_mul).right_kernel({.gates = std::move(gates)}).usual;
  };
  EXPECT_EQ(usual({}), 3);
  EXPECT_NEAR(usual({2, 3}), 3, 0.05);
  EXPECT_NEAR(usual({-4}), std::hypot(3, 0.3 / 0.018), 0.1);
  EXPECT_LT(usual({2, -4}), 1.5 * 3) << "what is seen in one of two elements is seen";
}

TEST(JudgedOp, EachKindHasItsOwn) {
  for (const OpKindRow& row : kOpKinds) {
    EXPECT_EQ(judged_op(row.kind).kind, row.kind) << row.name;
    EXPECT_EQ(row.makes_indices, row.kind == OpKind::argmax || row.kind == OpKind::top_k);
    // What is learnt from clean runs is learnt of numbers.
    EXPECT_TRUE(judged_op(row.kind).inner != nullptr || !judged_op(row.kind).is_calibrated);
  }
}

}  // namespace
}  // namespace lockstep
