#include "src/judge/logits.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/judge/fake_model.h"

namespace lockstep {
namespace {

KeptTensor logits(std::vector<double> values, DType dtype = DType::f64) {
  KeptTensor t{.point = &point("logits"), .rows = {{0, 4}}, .dtype = dtype};
  t.shape = {1, std::ssize(values)};
  t.data = rounded_tensor(values, t.shape, dtype);
  return t;
}

TEST(Logits, EqualOnesHaveNoDistance) {
  const KeptTensor x = logits({1, 3, 2});
  LogitsComparison c(DType::bf16);
  c.add(&x, &x, &x);
  ASSERT_TRUE(c.summary());
  EXPECT_EQ(c.summary()->max_abs, 0);
  EXPECT_NEAR(c.summary()->kl_mean, 0, 1e-15);
  EXPECT_EQ(c.summary()->argmax_equal, 1);
  EXPECT_DOUBLE_EQ(c.summary()->least_margin_ulp, 64);  // 1 in units of 2^-6
  EXPECT_TRUE(c.flips(0).empty());
}

TEST(Logits, DivergenceIsThatOfTwoSoftmaxes) {
  const KeptTensor exact = logits({0, 0}), got = logits({std::log(3.0), 0});
  LogitsComparison c(DType::f32);
  c.add(&got, &exact, &exact);
  // p = (1/2, 1/2), q = (3/4, 1/4)
  EXPECT_NEAR(c.summary()->kl_mean, 0.5 * std::log(2.0 / 3) + 0.5 * std::log(2.0), 1e-12);
  EXPECT_NEAR(c.summary()->max_abs, std::log(3.0), 1e-15);
}

TEST(Logits, AFlipIsExplainedByTheNoiseOfTheDtypeOnly) {
  const KeptTensor exact = logits({2, 2.25, 0}), got = logits({2.5, 2.25, 0});
  const KeptTensor noisy = logits({2.05, 2.2, 0.05}), quiet = logits({2.001, 2.251, 0.001});
  LogitsComparison c(DType::bf16);
  c.add(&got, &exact, &noisy);  // 0.25 <= 6 sqrt(2) 0.05
  c.add(&got, &exact, &quiet);
  const std::vector<Flip> flips = c.flips(0);
  ASSERT_EQ(flips.size(), 2u);
  EXPECT_TRUE(flips[0].explained);
  EXPECT_FALSE(flips[1].explained);
  EXPECT_EQ(flips[0].engine, 0);
  EXPECT_EQ(flips[0].reference, 1);
  EXPECT_DOUBLE_EQ(flips[0].margin_ulp, 16);
  EXPECT_EQ(c.summary()->explained_flips, 1);
  EXPECT_EQ(c.summary()->argmax_equal, 0);
}

TEST(Logits, NothingComparedIsNothing) {
  LogitsComparison c(DType::bf16);
  const KeptTensor x = logits({1, 2}), y = logits({1, 2, 3});
  c.add(&x, nullptr, nullptr);
  c.add(nullptr, &x, &x);
  c.add(&x, &y, &y);
  EXPECT_FALSE(c.summary());
}

TEST(Logits, NanIsKept) {
  const KeptTensor exact = logits({1, 2}), got = logits({std::nan(""), 2});
  LogitsComparison c(DType::f32);
  c.add(&got, &exact, &exact);
  EXPECT_TRUE(std::isnan(c.summary()->max_abs));
}

}  // namespace
}  // namespace lockstep
