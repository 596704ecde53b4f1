// Every formula against numbers worked out by hand.
#include "src/judge/budget.h"

#include <gtest/gtest.h>

#include <cmath>

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
  const Exact exact{.shape = {1}, .want = {5.0}};
  const Budget b = budget_of(OpKind::silu_mul, exact, DType::f32);
  EXPECT_DOUBLE_EQ(b.limit[0], 0x1p-22 + 16 * kU * 5);
  EXPECT_DOUBLE_EQ(b.variance[0], 0x1p-42 / 12 + std::pow(15 * kU, 2));
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
  Exact exact{.shape = {2, 2, 4}, .want = std::vector<double>(16, 1.0)};
  exact.row_terms = {4, 9};
  exact.score = {1, 2, 3, 40};
  exact.magnitude.assign(16, 2.0);
  exact.spread.assign(16, 0.5);
  exact.want[15] = 0;  // the rounding of the output vanishes beside the rest
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
  EXPECT_EQ(budget_of(OpKind::silu_mul, {.shape = {1}, .want = {1}}, DType::f32).gain, 0x1p-22);
  EXPECT_EQ(budget_of(OpKind::linear, exact, DType::bf16).misrounds, 0.02);
  EXPECT_EQ(budget_of(OpKind::linear, exact, DType::f16).misrounds, 0.10);
  EXPECT_EQ(budget_of(OpKind::linear, exact, DType::f32).misrounds, 1);
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
