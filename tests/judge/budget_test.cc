// Every formula against numbers worked out by hand.
#include "src/judge/budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/check.h"
#include "src/judge/limits.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

constexpr double kU = 0x1p-24;

TEST(Budget, OfALinearOp) {
  const Exact exact{.shape = {1, 2}, .want = {1.0, 0.0}, .terms = 64, .magnitude = {10, 3}};
  const Budget b = budget_of(OpKind::linear, exact, DType::bf16);
  EXPECT_DOUBLE_EQ(b.limit[0], 0x1p-8 + 8 * 8 * kU * 10);
  EXPECT_DOUBLE_EQ(b.variance[0], 0x1p-14 / 12 + std::pow(0.3 * 8 * kU * 10, 2));
  // At zero the spacing is that of the subnormals, and the accumulation remains.
  EXPECT_NEAR(b.limit[1], 8 * 8 * kU * 3, 1e-30);
  EXPECT_GT(b.variance[1], 0);
}

TEST(Budget, OfARowIsThatPartOfTheWhole) {
  const Exact exact{
      .shape = {2, 3}, .want = {1, 2, 3, 4, 5, 6}, .terms = 64, .magnitude = {9, 8, 7, 6, 5, 4}};
  const Budget all = budget_of(OpKind::linear, exact, DType::bf16);
  const auto of = [&](Elements elements) {
    return budget_of(OpKind::linear, exact, DType::bf16, Schema::fused, Accumulator::fp32,
                     elements);
  };
  ASSERT_EQ(all.limit.size(), 6);
  const Budget row = of({.first = 3, .count = 3});
  EXPECT_TRUE(std::ranges::equal(row.limit, std::span(all.limit).subspan(3)));
  EXPECT_TRUE(std::ranges::equal(row.variance, std::span(all.variance).subspan(3)));
  EXPECT_EQ(of({.first = 4}).limit.size(), 2);
  EXPECT_THROW(of({.first = 4, .count = 3}), Error);
  EXPECT_THROW(of({.first = 7}), Error);
}

TEST(Budget, OfALinearOpOnTf32OperandsKnowsTheirRoundings) {
  const Exact exact{
      .shape = {1, 1}, .want = {1.0}, .terms = 64, .magnitude = {10}, .squares = {25}};
  const double operands = 1.2 * 0x1p-11 * 5;
  for (const OpKind op : {OpKind::linear, OpKind::expert_linear}) {
    const Budget tf32 = budget_of(op, exact, DType::f32, Schema::fused, Accumulator::tf32);
    const Budget fp32 = budget_of(op, exact, DType::f32);
    EXPECT_DOUBLE_EQ(tf32.limit[0], fp32.limit[0] + 8 * operands);
    EXPECT_DOUBLE_EQ(tf32.variance[0], fp32.variance[0] + operands * operands);
    EXPECT_DOUBLE_EQ(tf32.gain, fp32.gain + 0x1p-10);
    // 16-bit operands are whole in tf32.
    const Budget bf16 = budget_of(op, exact, DType::bf16, Schema::fused, Accumulator::tf32);
    EXPECT_EQ(bf16.limit, budget_of(op, exact, DType::bf16).limit);
  }
  const Exact without{.shape = {1, 1}, .want = {1.0}, .terms = 64, .magnitude = {10}};
  EXPECT_THROW(budget_of(OpKind::linear, without, DType::f32, Schema::fused, Accumulator::tf32),
               Error);
  EXPECT_THROW(accumulator_from("tf16"), Error);
}

TEST(Budget, OfANorm) {
  const Exact exact{.shape = {1, 1}, .want = {-3.0}, .terms = 16};
  const Budget b = budget_of(OpKind::norm, exact, DType::f32);
  EXPECT_DOUBLE_EQ(b.limit[0], 0x1p-23 + (8 * 4 / 2 + 8) * kU * 3);
  EXPECT_DOUBLE_EQ(b.variance[0], 0x1p-44 / 12 + std::pow(2 * kU * 3, 2));
}

TEST(Budget, OfRope) {
  const Exact exact{
      .shape = {1, 1, 1}, .want = {0.75}, .magnitude = {2}, .angle = {100}, .x1c_x2s = {1.5}};
  const Budget b = budget_of(OpKind::rope, exact, DType::f16);
  EXPECT_DOUBLE_EQ(b.limit[0], 0x1p-12 + 204 * kU * 2);
  EXPECT_DOUBLE_EQ(b.variance[0], 0x1p-22 / 12 + std::pow(0.6 * kU * 1.5, 2));
}

TEST(Budget, OfSilu) {
  const Exact exact{.shape = {1}, .want = {5.0}, .factor = {2.0}};
  const Budget b = budget_of(OpKind::silu_mul, exact, DType::f32);
  EXPECT_DOUBLE_EQ(b.limit[0], 0x1p-22 + 16 * kU * 5);
  EXPECT_DOUBLE_EQ(b.variance[0], 0x1p-42 / 12 + std::pow(15 * kU, 2));
}

// x / (1 + exp(-x)) in fp32, as kernels have it, is 0 from -88.8 on; its exact value is a normal
// number until -91.9.
TEST(Budget, OfSiluAllowsItsExponentialToOverflow) {
  const double up = -3;
  for (const float gate : {-80.f, -88.f, -88.8f, -90.f, -95.f, -103.f, -110.f}) {
    const double want = gate / (1 + std::exp(-static_cast<double>(gate))) * up;
    const double got = gate / (1 + std::exp(-gate)) * static_cast<float>(up);
    const Exact exact{.shape = {1}, .want = {want}, .factor = {up}};
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Budget b = budget_of(OpKind::silu_mul, exact, dtype);
      EXPECT_LE(std::fabs(round_to(got, dtype) - want), b.limit[0]) << gate;
      EXPECT_LE(std::pow(round_to(got, dtype) - want, 2), 16 * b.variance[0]) << gate;
      if (gate > -88.7f) continue;
      tighten(b, exact.want, dtype, {.inner = 0.01});  // learnt where no gate was that small
      EXPECT_LE(std::fabs(round_to(got, dtype) - want), b.limit[0]) << gate;
    }
  }
  const Exact lost{.shape = {1}, .want = {1e-30}, .factor = {1}};
  EXPECT_LT(budget_of(OpKind::silu_mul, lost, DType::f32).limit[0], 1e-35) << "no more than that";
}

TEST(Budget, OfWeightsOfExperts) {
  const Exact exact{.shape = {1, 1}, .want = {0.75}, .terms = 16, .magnitude = {3}};
  const Budget b = budget_of(OpKind::softmax, exact, DType::f32);
  EXPECT_DOUBLE_EQ(b.limit[0], 0x1p-25 + (16 + 2 * 3 + 8 * 4) * kU * 0.75);
  EXPECT_DOUBLE_EQ(b.variance[0], 0x1p-48 / 12 + std::pow((3 + 0.3 * (3 + 4)) * kU * 0.75, 2));
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
  const Budget b = budget_of(OpKind::attention, exact, DType::bf16);
  const double ds = 2 * kU * 40 + 4 * kU;  // of the last row and head: sqrt(4 dims) u score + 4 u
  EXPECT_DOUBLE_EQ(b.limit[14], 0x1p-8 + 16 * ds * 0.5 + 8 * 3 * kU * 2);
  EXPECT_DOUBLE_EQ(b.limit[15], 16 * ds * 0.5 + 8 * 3 * kU * 2);
  EXPECT_DOUBLE_EQ(b.variance[15], std::pow(ds * 0.5, 2) + std::pow(0.3 * 3 * kU * 2, 2));
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
            0x1p-23);
  EXPECT_EQ(
      budget_of(OpKind::silu_mul, {.shape = {1}, .want = {1}, .factor = {1}}, DType::f32).gain,
      0x1p-22);
  EXPECT_EQ(budget_of(OpKind::linear, exact, DType::bf16).misrounds, 0.02);
  EXPECT_EQ(budget_of(OpKind::linear, exact, DType::f16).misrounds, 0.10);
  EXPECT_EQ(budget_of(OpKind::linear, exact, DType::f32).misrounds, 1);
}

// What an independent chain of roundings does, beside the exact result.
struct Chain {
  Exact exact;
  std::vector<double> got;
};

Chain chain_of(OpKind op, DType dtype, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  constexpr int64_t kCount = 20000;
  std::vector<double> got, want, magnitude, x1c_x2s, inner, factor, all_x1, all_x2, all_cos,
      all_sin;
  const auto r = [dtype](double x) { return round_to(x, dtype); };
  for (int64_t i = 0; i < kCount; ++i) {
    const double x1 = r(normal(random)), x2 = r(normal(random)), angle = 100 * normal(random);
    if (op == OpKind::rope) {
      const double cos = std::cos(angle), sin = std::sin(angle);
      want.push_back(x1 * cos + x2 * sin);
      magnitude.push_back(std::fabs(x1) + std::fabs(x2));
      x1c_x2s.push_back(std::hypot(x1 * cos, x2 * sin));
      all_x1.push_back(x1), all_x2.push_back(x2), all_cos.push_back(cos), all_sin.push_back(sin);
      got.push_back(r(r(x1 * r(cos)) + r(x2 * r(sin))));
    } else {  // an inner value times a factor
      inner.push_back(normal(random)), factor.push_back(x1);
      want.push_back(inner.back() * x1);
      got.push_back(r(r(inner.back()) * x1));
    }
  }
  Exact e{.shape = {1, 1, kCount}, .want = want, .terms = 16, .magnitude = magnitude};
  e.angle = std::vector<double>(x1c_x2s.size(), 0);
  e.x1c_x2s = x1c_x2s, e.inner = inner, e.factor = factor;
  e.x1 = all_x1, e.x2 = all_x2, e.cos = all_cos, e.sin = all_sin;
  return {e, got};
}

TEST(Schemas, OfAChainOfOpsAllowWhatItRoundsOnTheWay) {
  for (const OpKind op : {OpKind::norm, OpKind::silu_mul, OpKind::rope})
    for (const DType dtype : {DType::bf16, DType::f16}) {
      const auto [exact, got] = chain_of(op, dtype, 5);
      const Budget fused = budget_of(op, exact, dtype),
                   hf = budget_of(op, exact, dtype, Schema::hf);
      double over_fused = 0, squares = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        const double eta = std::fabs(got[i] - exact.want[i]);
        EXPECT_LE(eta, hf.limit[i]) << static_cast<int>(op) << ' ' << exact.want[i];
        over_fused += eta > fused.limit[i];
        squares += eta * eta / hf.variance[i];
      }
      const auto n = static_cast<double>(got.size());
      EXPECT_GT(over_fused / n, 0.05);
      EXPECT_NEAR(std::sqrt(squares / n), 1, 0.12) << static_cast<int>(op);
      EXPECT_EQ(hf.misrounds, 1);
      EXPECT_GT(hf.gain, unit_roundoff(dtype));
      EXPECT_EQ(budget_of(op, exact, dtype, Schema::eager).limit, hf.limit);
    }
}

TEST(Schemas, OfAttentionRoundItsWeightsAndItsScores) {
  Exact exact{.shape = {1, 1, 2}, .want = {1, 1}, .row_terms = {4}, .magnitude = {2, 2}};
  exact.spread = {0.5, 0.5}, exact.score = {3}, exact.weighted_squares = {0.25, 0.25};
  exact.overlap = {0.09};
  const Budget fused = budget_of(OpKind::attention, exact, DType::bf16);
  const Budget hf = budget_of(OpKind::attention, exact, DType::bf16, Schema::hf);
  const Budget eager = budget_of(OpKind::attention, exact, DType::bf16, Schema::eager);
  EXPECT_NEAR(hf.limit[0] - fused.limit[0], 0.6 * 8 * 0x1p-8 * 0.5, 1e-12);
  EXPECT_NEAR(hf.variance[0] - fused.variance[0], 0x1p-20, 1e-15);
  EXPECT_NEAR(hf.shared[0] - fused.shared[0], 0.3 * 0x1p-20, 1e-15);
  EXPECT_NEAR(eager.limit[0] - hf.limit[0], 16 * 0x1p-6 * 0.5, 1e-12);  // ulp of 3 is 2^-6
  exact.overlap = {};
  EXPECT_NO_THROW(budget_of(OpKind::attention, exact, DType::bf16));
  EXPECT_THROW(budget_of(OpKind::attention, exact, DType::bf16, Schema::hf), Error);
}

TEST(Schemas, AreOfOpsThatCanBeChains) {
  EXPECT_EQ(schemas_of(OpKind::linear).size(), 1u);
  EXPECT_EQ(schemas_of(OpKind::norm).size(), 2u);
  EXPECT_EQ(schemas_of(OpKind::attention).back(), Schema::eager);
  const Exact exact{.shape = {1, 1}, .want = {1}, .terms = 4};
  EXPECT_THROW(budget_of(OpKind::norm, exact, DType::bf16, Schema::hf), Error);
  EXPECT_NO_THROW(budget_of(OpKind::norm, exact, DType::bf16));
}

TEST(Budget, IsRefusedWithoutItsMagnitudes) {
  const Exact exact{.shape = {2}, .want = {1, 2}, .terms = 3, .magnitude = {1}};
  EXPECT_NE(error_of([&] { budget_of(OpKind::linear, exact, DType::bf16); }).find("oracle"),
            std::string::npos);
  EXPECT_THROW(budget_of(OpKind::rope, exact, DType::bf16), Error);
  EXPECT_THROW(budget_of(OpKind::attention, exact, DType::bf16), Error);
  EXPECT_THROW(budget_of(OpKind::softmax, exact, DType::bf16), Error);
  EXPECT_THROW(budget_of(OpKind::top_k, exact, DType::bf16), Error);
  EXPECT_THROW(budget_of(OpKind::cache, exact, DType::bf16), Error);
}

}  // namespace
}  // namespace lockstep
