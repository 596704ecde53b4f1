#include "src/judge/logits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/judge/fake_model.h"

namespace lockstep {
namespace {

RecordedTensor logits(std::vector<double> values, DType dtype = DType::f64) {
  RecordedTensor t{.point = &point("logits"), .rows = {{0, 4}}, .dtype = dtype};
  t.shape = {1, std::ssize(values)};
  t.data = rounded_tensor(values, t.shape, dtype);
  return t;
}

TEST(Logits, EqualOnesHaveNoDistance) {
  const RecordedTensor x = logits({1, 3, 2});
  LogitsComparison c(DType::bf16);
  c.add(0, &x, &x, &x);
  ASSERT_TRUE(c.summary());
  EXPECT_EQ(c.summary()->max_abs, 0);
  EXPECT_NEAR(c.summary()->kl_mean, 0, 1e-15);
  EXPECT_EQ(c.summary()->argmax_equal, 1);
  EXPECT_DOUBLE_EQ(c.summary()->least_margin_ulp, 64);  // 1 in units of 2^-6
  EXPECT_TRUE(c.flips(0).empty());
}

TEST(Logits, LeaveOutTheRowsAloneThatAModelLacks) {
  RecordedTensor got = logits({1, 3, 2});
  got.rows = {{0, 4}, {0, 5}};
  got.shape = {2, 3};
  const std::vector<double> numbers = {1, 3, 2, 1, 3, 2.5};
  got.data = rounded_tensor(numbers, got.shape, DType::f64);
  RecordedTensor exact = logits({1, 3, 2});
  exact.rows = {{0, 5}};
  LogitsComparison c(DType::bf16);
  c.add(0, &got, &exact, &exact);
  ASSERT_TRUE(c.summary());
  EXPECT_EQ(c.summary()->compared, 1);
  EXPECT_DOUBLE_EQ(c.summary()->max_abs, 0.5);
}

// However little the fp64 model prefers another one.
TEST(Logits, AChoiceThatIsNotTheLargestOfItsRowIsNotOneOfRounding) {
  const RecordedTensor exact = logits({1, 3, 2.99}), rounded = logits({1, 3, 3});
  const RecordedTensor got = logits({1, 3, 2.98});
  for (const int32_t chosen : {1, 2, -1}) {
    LogitsComparison c(DType::bf16);
    const TopLogits best[] = {{.row = {0, 4}, .ids = {1}, .values = {3}, .chosen = chosen}};
    c.add(0, &got, &exact, &rounded, best);
    EXPECT_EQ(c.summary()->argmax_equal, chosen == 2 ? 0 : 1) << chosen;
    EXPECT_EQ(c.summary()->unexplained_flips, chosen == 2 ? 1 : 0) << chosen;
  }
  LogitsComparison moved(DType::bf16);
  const RecordedTensor largest = logits({1, 3, 3.01});
  moved.add(0, &largest, &exact, &rounded);
  EXPECT_EQ(moved.summary()->explained_flips, 1);
}

TEST(Logits, AChoiceThatIsNoTokenIsAnotherThanTheModels) {
  const RecordedTensor x = logits({1, 3, 2.99});
  LogitsComparison c(DType::bf16);
  const TopLogits best[] = {{.row = {0, 4}, .ids = {1}, .values = {3}, .chosen = 3}};
  c.add(0, &x, &x, &x, best);
  EXPECT_EQ(c.summary()->unexplained_flips, 1);
  ASSERT_EQ(c.flips(0).size(), 1u);
  EXPECT_EQ(c.flips(0)[0].engine, 3);
  EXPECT_EQ(c.summary()->kl_mean, 0) << "the logits are right";
  const TopLogits none[] = {{.row = {0, 4}, .ids = {1}, .values = {3}, .chosen = kChoseMinusOne}};
  c.add(1, &x, &x, &x, none);
  EXPECT_EQ(c.summary()->unexplained_flips, 2);
  EXPECT_EQ(c.flips(0).back().engine, -1);
}

// Of equal logits the op that chooses must take the first.
TEST(Logits, RoundingExplainsNoChoiceOfAnOpThatIsWrong) {
  const RecordedTensor exact = logits({1, 3, 2.999}), got = logits({1, 3, 3});
  LogitsComparison c(DType::bf16);
  const TopLogits best[] = {{.row = {0, 4}, .ids = {1, 2}, .values = {3, 3}, .chosen = 2}};
  c.add(0, &got, &exact, &got, best);
  ASSERT_EQ(c.summary()->explained_flips, 1);
  c.choose_wrongly({0, 5});
  EXPECT_EQ(c.summary()->explained_flips, 1) << "another row";
  c.choose_wrongly({0, 4});
  c.choose_wrongly({0, 4});
  EXPECT_EQ(c.summary()->explained_flips, 0);
  EXPECT_EQ(c.summary()->unexplained_flips, 1);
  EXPECT_FALSE(c.flips(0)[0].explained);
  EXPECT_EQ(c.flips(0)[0].ancestor, "token");
}

TEST(Logits, DivergenceIsThatOfTwoSoftmaxes) {
  const RecordedTensor exact = logits({0, 0}), got = logits({std::log(3.0), 0});
  LogitsComparison c(DType::f32);
  c.add(0, &got, &exact, &exact);
  // p = (1/2, 1/2), q = (3/4, 1/4)
  EXPECT_NEAR(c.summary()->kl_mean, 0.5 * std::log(2.0 / 3) + 0.5 * std::log(2.0), 1e-12);
  EXPECT_NEAR(c.summary()->max_abs, std::log(3.0), 1e-15);
}

TEST(Logits, PercentilesAreOfAsManyRowsAsTheyNeed) {
  const RecordedTensor exact = logits({0, 0});
  LogitsComparison c(DType::f32);
  std::vector<double> divergences;
  for (int row = 1; row <= 20; ++row) {
    const RecordedTensor got = logits({0.1 * row, 0});
    LogitsComparison alone(DType::f32);
    alone.add(0, &got, &exact, &exact);
    divergences.push_back(alone.summary()->kl_mean);
    c.add(0, &got, &exact, &exact);
  }
  const LogitsSummary::KlPercentiles kl = c.summary()->kl;
  EXPECT_EQ(kl.median, divergences[9]);
  EXPECT_EQ(kl.p90, divergences[17]);
  EXPECT_EQ(kl.p95, divergences[18]);
  EXPECT_FALSE(kl.p99 || kl.p999) << "no row of 20 is above them";
  EXPECT_EQ(kl.max, divergences[19]);
  EXPECT_EQ(c.margins(0).size(), 20u);
  EXPECT_TRUE(c.margins(1).empty());
}

TEST(Logits, AFlipIsExplainedByTheNoiseOfTheDtypeOnly) {
  const RecordedTensor exact = logits({2, 2.25, 0}), got = logits({2.5, 2.25, 0});
  const RecordedTensor noisy = logits({2.05, 2.2, 0.05}), quiet = logits({2.001, 2.251, 0.001});
  LogitsComparison c(DType::bf16);
  c.add(0, &got, &exact, &noisy);  // 0.25 <= 6 sqrt(2) 0.05
  c.add(0, &got, &exact, &quiet);
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

Statistic statistic(const std::vector<LogitsComparison::Doubt>& all, StatisticKind kind,
                    size_t nth) {
  for (const LogitsComparison::Doubt& doubt : all)
    if (doubt.statistic.kind == kind && nth-- == 0) return doubt.statistic;
  fail("no statistic {}", name_of(kind));
}

// The exact candidates are `margin` apart and the noise of the dtype is 0.1: rows in which the
// engine takes the second.
LogitsComparison flips_at(double margin, int rows, int flipped) {
  const RecordedTensor exact = logits({1 + margin, 1}), rounded = logits({1.1 + margin, 0.9});
  const RecordedTensor right = logits({1.2 + margin, 1}), wrong = logits({1, 1.2});
  LogitsComparison c(DType::bf16);
  for (int i = 0; i < rows; ++i) c.add(0, i < flipped ? &wrong : &right, &exact, &rounded);
  return c;
}

TEST(Flips, AreComparedWithTheirExpectedNumber) {
  // Q(0.2 / (sqrt(2) 0.1)) = 0.0786 of 50 rows: 3.9 are expected, and P(X >= 16) = 4e-6 of that
  // Poisson distribution, P(X >= 17) = 9e-7.
  const LogitsComparison some = flips_at(0.2, 50, 10), many = flips_at(0.2, 50, 17);
  EXPECT_NEAR(some.summary()->expected_flips, 50 * 0.07865, 0.01);
  const std::vector<LogitsComparison::Doubt> statistics = some.doubts();
  EXPECT_EQ(statistic(statistics, StatisticKind::flips, 0).value, 0);  // unexplained ones
  EXPECT_TRUE(statistic(statistics, StatisticKind::flips, 0).passes(1));
  EXPECT_EQ(statistic(statistics, StatisticKind::flips, 1).value, 10);
  EXPECT_EQ(statistic(statistics, StatisticKind::flips, 1).limit, 16);
  EXPECT_TRUE(statistic(statistics, StatisticKind::flips, 1).passes(1));
  EXPECT_FALSE(statistic(many.doubts(), StatisticKind::flips, 1).passes(1));
}

TEST(Flips, ThatRoundingDoesNotExplainAreNeverExpected) {
  EXPECT_FALSE(statistic(flips_at(1, 50, 1).doubts(), StatisticKind::flips, 0).passes(1));
  EXPECT_TRUE(statistic(flips_at(1, 50, 0).doubts(), StatisticKind::flips, 0).passes(1));
  // Without any noise nothing is expected to differ, and that is no division by zero.
  const RecordedTensor exact = logits({1.5, 1}), got = logits({1, 1.5});
  LogitsComparison c(DType::bf16);
  c.add(0, &got, &exact, &exact);
  EXPECT_EQ(c.summary()->expected_flips, 0);
  EXPECT_FALSE(statistic(c.doubts(), StatisticKind::flips, 1).passes(1));
}

TEST(Divergence, OfAHundredRowsIsHeldToThatOfTheReference) {
  const RecordedTensor exact = logits({0, 0}), rounded = logits({0.01, 0}), far = logits({0.02, 0}),
                       near = logits({0.015, 0});
  const auto of = [&](const RecordedTensor& got, int rows) {
    LogitsComparison c(DType::bf16);
    for (int i = 0; i < rows; ++i) c.add(0, &got, &exact, &rounded);
    return c.doubts();
  };
  EXPECT_EQ(of(far, 99).size(), 2u) << "too few rows to tell";
  EXPECT_FALSE(statistic(of(far, 100), StatisticKind::divergence, 0).passes(1));  // 4 times
  EXPECT_TRUE(statistic(of(near, 100), StatisticKind::divergence, 0).passes(1));  // 2.25 times
}

TEST(Flips, AreFoundAtTheirOwnRow) {
  const RecordedTensor exact = logits({2, 1}), rounded = logits({2.01, 1});
  LogitsComparison c(DType::bf16);
  for (int32_t pass = 0; pass < 9; ++pass) {
    RecordedTensor got = pass == 5 ? logits({1, 2}) : logits({2, 1});
    RecordedTensor at_row = exact, of_rounded = rounded;
    for (RecordedTensor* t : {&got, &at_row, &of_rounded}) t->rows = {{7, 20 + pass}};
    c.add(pass, &got, &at_row, &of_rounded);
  }
  const LogitsComparison::Doubt doubt = c.doubts().at(0);
  EXPECT_FALSE(doubt.statistic.passes(1));
  EXPECT_EQ(doubt.pass, 5);
  EXPECT_EQ(doubt.row, (Row{7, 25}));
}

TEST(Flips, AreLedBackToTheirFinding) {
  LogitsComparison c = flips_at(0.2, 1, 1);
  c.lead_back(0, {{0, 3}}, "layer 1 attn.q");
  EXPECT_EQ(c.flips(0).at(0).ancestor, "");  // it is at position 4
  c.lead_back(0, {{0, 4}}, "layer 1 attn.q");
  EXPECT_EQ(c.flips(0).at(0).ancestor, "layer 1 attn.q");
}

// The fp64 model may prefer its own token by as little as it likes.
TEST(Flips, BehindAFindingThatMovedTheirLogitsAreNotOfRounding) {
  const RecordedTensor exact = logits({1, 3, 2.99}), rounded = logits({1, 3, 3});
  for (const auto& [second, explained] : {std::pair{3.01, 1}, {5.0, 0}}) {
    const RecordedTensor got = logits({1, 3, second});
    LogitsComparison c(DType::bf16);
    c.add(0, &got, &exact, &rounded);
    ASSERT_EQ(c.summary()->explained_flips, 1) << "no finding is known yet";
    c.lead_back(0, {{0, 4}}, "layer 1 attn.q");
    EXPECT_EQ(c.summary()->explained_flips, explained) << second;
    EXPECT_EQ(c.summary()->unexplained_flips, 1 - explained) << second;
    EXPECT_EQ(c.flips(0).at(0).explained, explained == 1) << second;
  }
}

// A row that comes twice has a flip of its own each time.
TEST(Flips, OfARowThatCameTwiceAreEachOfTheirOwnLogits) {
  const RecordedTensor exact = logits({1, 3, 2.99}), rounded = logits({1, 3, 3});
  LogitsComparison c(DType::bf16);
  for (const double second : {3.01, 5.0}) {
    const RecordedTensor got = logits({1, 3, second});
    c.add(0, &got, &exact, &rounded);
  }
  c.lead_back(0, {{0, 4}}, "layer 1 attn.q");
  ASSERT_EQ(c.flips(0).size(), 2u);
  EXPECT_TRUE(c.flips(0)[0].explained);
  EXPECT_FALSE(c.flips(0)[1].explained);
}

TEST(Logits, NothingComparedIsNothing) {
  LogitsComparison c(DType::bf16);
  const RecordedTensor x = logits({1, 2}), y = logits({1, 2, 3});
  c.add(0, &x, nullptr, nullptr);
  c.add(0, nullptr, &x, &x);
  c.add(0, &x, &y, &y);
  EXPECT_FALSE(c.summary());
}

// Rounding explains no choice among what is no number; of a model that has none nothing is known.
TEST(Logits, ThatAreNoNumbersExplainNothing) {
  const RecordedTensor exact = logits({1, 2});
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const RecordedTensor got = logits({bad, 2});
    LogitsComparison c(DType::f32);
    c.add(0, &exact, &got, &exact);
    c.add(0, &exact, &exact, &got);
    EXPECT_FALSE(c.summary());
    c.add(0, &got, &exact, &exact);
    EXPECT_TRUE(std::isnan(c.summary()->max_abs));
    EXPECT_EQ(c.summary()->unexplained_flips, 1);
    EXPECT_FALSE(statistic(c.doubts(), StatisticKind::flips, 0).passes(1));
    EXPECT_FALSE(c.flips(0).at(0).explained);
  }
}

}  // namespace
}  // namespace lockstep
