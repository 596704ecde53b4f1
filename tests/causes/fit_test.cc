#include "src/causes/fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "src/stats/roundoff.h"

namespace lockstep {
namespace {

using Values = std::vector<double>;

// A node of bf16 whose right result is 1, 2, 3, ... with budgets of half an ulp.
struct Node {
  Values want, got, limit;
  DType dtype = DType::bf16;

  explicit Node(size_t n, DType of = DType::bf16) : dtype(of) {
    for (size_t i = 0; i < n; ++i) want.push_back(static_cast<double>(i + 1));
    for (const double w : want) limit.push_back(ulp(w, dtype) / 2);
    got = want;
  }
  Fit fit(const Values& hypothesis) const { return fit_of({dtype, got, want, limit}, hypothesis); }
};

Values doubled(Values values) {
  for (double& v : values) v *= 2;
  return values;
}

TEST(Fit, ExplainsElementsOverTheirBudgetsAndCountsThem) {
  Node node(40);
  const Values twice = doubled(node.want);
  node.got = twice;
  const Fit fit = node.fit(twice);
  EXPECT_TRUE(fit.explains());
  EXPECT_EQ(fit.elements, 40);
  EXPECT_EQ(fit.of_elements, 40);
  EXPECT_EQ(fit.nodes, 1);
  EXPECT_FALSE(node.fit(node.want).explains()) << "what is right explains no error";
}

TEST(Fit, NeedsNineteenOfTwentyWrongElements) {
  Node node(40);
  const Values twice = doubled(node.want);
  node.got = twice;
  node.got[7] = 1000;
  node.got[8] = -1000;
  EXPECT_TRUE(node.fit(twice).explains()) << "38 of 40";
  node.got[9] = 3000;
  EXPECT_FALSE(node.fit(twice).explains()) << "37 of 40";
}

// Rounding alone explains most of what an op of another contract is: a cause must explain the rest.
TEST(Fit, ExplainsWhatAnotherLeaves) {
  const Fit rounding = {.elements = 49965, .of_elements = 50245};
  const auto beyond = [&](int64_t elements) {
    return Fit{.elements = elements, .of_elements = 50245}.explains_beyond(rounding);
  };
  EXPECT_TRUE(beyond(50245));
  EXPECT_TRUE(beyond(49965 + 266));
  EXPECT_FALSE(beyond(49965 + 265));
  EXPECT_FALSE(beyond(49960));
  const Fit all = {.elements = 7, .of_elements = 7};
  EXPECT_TRUE(all.explains_beyond(all)) << "nothing is left";
}

TEST(Fit, IsRefutedByMoreRightNodesThanItExplains) {
  Node wrong(40), right(40);
  const Values twice = doubled(wrong.want);
  wrong.got = twice;
  const WrongNode held{right.dtype, right.got, right.want, right.limit};
  Fit fit = wrong.fit(twice);
  fit.add(fit_of_right(held, right.want));
  EXPECT_EQ(fit.refuting, 0) << "it leaves that node as it is";
  fit.add(fit_of_right(held, twice));
  EXPECT_EQ(fit.refuting, 1);
  EXPECT_TRUE(fit.explains()) << "a bug may spare a request";
  fit.add(fit_of_right(held, twice));
  EXPECT_FALSE(fit.explains());
}

TEST(Fit, LosesNoRightElement) {
  Node node(40);
  node.got[3] *= 2;
  Values hypothesis = node.want;
  hypothesis[3] *= 2;
  EXPECT_TRUE(node.fit(hypothesis).explains());
  hypothesis[4] *= 2;
  EXPECT_FALSE(node.fit(hypothesis).explains()) << "it would have element 4 wrong, which is right";
  EXPECT_EQ(node.fit(hypothesis).lost, 1);
}

TEST(Fit, TakesNanAndInfinityForThemselvesAlone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Node node(4);
  node.got[1] = nan;
  Values hypothesis = node.want;
  EXPECT_FALSE(node.fit(hypothesis).explains());
  hypothesis[1] = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(node.fit(hypothesis).explains());
  hypothesis[1] = nan;
  EXPECT_TRUE(node.fit(hypothesis).explains());
}

// No element is over its budget, but a third is not the exact result rounded.
TEST(Fit, HoldsBitsAgainstBitsWhereNoElementIsOver) {
  Node node(60);
  Values hypothesis = node.want;
  for (size_t i = 0; i < node.want.size(); ++i) {
    node.limit[i] = 3 * ulp(node.want[i], node.dtype);
    if (i % 3 == 0) hypothesis[i] += ulp(node.want[i], node.dtype);
  }
  node.got = hypothesis;
  EXPECT_TRUE(node.fit(hypothesis).explains());
  EXPECT_EQ(node.fit(hypothesis).of_elements, 20);
  EXPECT_FALSE(node.fit(node.want).explains());
}

TEST(Fit, OfFp32NeedsAClearDifferenceWhereNoElementIsOver) {
  Node node(60, DType::f32);
  Values hypothesis = node.want;
  for (size_t i = 0; i < node.want.size(); ++i) {
    node.limit[i] = 100 * ulp(node.want[i], node.dtype);
    hypothesis[i] += 40 * ulp(node.want[i], node.dtype);
    node.got[i] = hypothesis[i] + (i % 2 == 0 ? 1 : -1) * ulp(node.want[i], node.dtype);
  }
  EXPECT_TRUE(node.fit(hypothesis).explains());
  EXPECT_FALSE(node.fit(node.want).explains());
}

// Of a region a cause ends within one rounding of what was stored; what merely is nearer does not.
TEST(FitInRegion, WantsOneRounding) {
  std::vector<double> want, got, cause, nearer, limit;
  for (int i = 0; i < 200; ++i) {
    const double x = 1 + (i * 0.37 - std::floor(i * 0.37));
    want.push_back(x);
    cause.push_back(1.1 * x);
    nearer.push_back(1.06 * x);
    got.push_back(round_to(1.1 * x, DType::bf16));
    limit.push_back(ulp(x, DType::bf16) / 2);
  }
  const WrongNode node{DType::bf16, got, want, limit};
  const Fit found = fit_in_region(node, cause);
  EXPECT_TRUE(found.explains());
  EXPECT_EQ(found.of_elements, 200);
  EXPECT_EQ(found.nodes, 1);
  EXPECT_FALSE(fit_in_region(node, nearer).explains());
  EXPECT_FALSE(fit_in_region(node, want).explains());
  // Half of it: right elements would be lost.
  std::vector<double> half = got;
  for (size_t i = 0; i < half.size(); i += 2) half[i] = round_to(want[i], DType::bf16);
  const Fit lost = fit_in_region({DType::bf16, half, want, limit}, cause);
  EXPECT_FALSE(lost.explains());
  EXPECT_EQ(lost.lost, 100);
}

// What hidden ops in fp32 may be off is in the budgets: a cause may be as far away and no further.
TEST(FitInRegion, HasRoomForHiddenArithmetic) {
  std::vector<double> want, got, cause, nearer, narrow, limit;
  for (int i = 0; i < 200; ++i) {
    const double x = 1 + (i * 0.37 - std::floor(i * 0.37)), spacing = ulp(x, DType::f32);
    want.push_back(x);
    cause.push_back(1.001 * x);
    nearer.push_back(1.0009 * x);
    got.push_back(round_to(1.001 * x + (i % 3 - 1) * 40 * spacing, DType::f32));
    narrow.push_back(spacing / 2);
    limit.push_back(spacing / 2 + 100 * spacing);
  }
  EXPECT_TRUE(fit_in_region({DType::f32, got, want, limit}, cause).explains());
  EXPECT_FALSE(fit_in_region({DType::f32, got, want, limit}, nearer).explains());
  EXPECT_FALSE(fit_in_region({DType::f32, got, want, narrow}, cause).explains());
}

}  // namespace
}  // namespace lockstep
