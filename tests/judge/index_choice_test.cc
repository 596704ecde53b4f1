// Which indices are wrong among values that are known, or known but for an error.
#include "src/judge/index_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace lockstep {
namespace {

// One row of three values of which two were chosen, each with that deviation.
ChoiceOutcome choice(const std::vector<double>& values, int32_t first, int32_t second,
                     double deviation, Ties ties = Ties::any) {
  Tensor of_values(Shape{1, 3}, DType::f64), of_deviation(Shape{1, 3}, DType::f64);
  Tensor chosen(Shape{1, 2}, DType::i32);
  std::ranges::copy(values, of_values.as<double>());
  std::fill_n(of_deviation.as<double>(), 3, deviation);
  chosen.as<int32_t>()[0] = first;
  chosen.as<int32_t>()[1] = second;
  NodeRows node;
  node.rows = {{.request = 0, .position = 5}};
  return judge_choice(node, false, ties, of_values, chosen,
                      deviation > 0 ? of_deviation.view() : TensorView{});
}

NodeOutcome judged(const std::vector<double>& values, int32_t first, int32_t second,
                   double deviation) {
  return choice(values, first, second, deviation).node;
}

TEST(IndexChoice, OfKnownValuesIsOfTheLargest) {
  EXPECT_EQ(judged({1, 3, 2}, 2, 1, 0).verdict, Verdict::bitwise);
  const NodeOutcome wrong = judged({1, 3, 2}, 1, 0, 0);
  EXPECT_EQ(wrong.verdict, Verdict::introduced);
  EXPECT_EQ(wrong.finding.want, 2);
  EXPECT_EQ(wrong.finding.got, 0);
  EXPECT_EQ(wrong.position, 5);
}

// Two values may be off by 8 sqrt(2) of their deviations each, 22.6 in all.
TEST(IndexChoice, OfHiddenValuesIsWrongWhereTheyCannotBeOffSoMuch) {
  EXPECT_EQ(judged({1, 9, 2}, 1, 0, 1 / 22.0).verdict, Verdict::bitwise);
  const NodeOutcome wrong = judged({1, 9, 2}, 1, 0, 1 / 23.0);
  EXPECT_EQ(wrong.verdict, Verdict::introduced);
  EXPECT_EQ(wrong.finding.got, 0);
  EXPECT_EQ(judged({1, 9, 2}, 1, 2, 1 / 23.0).verdict, Verdict::bitwise);
}

TEST(IndexChoice, OfHiddenValuesSaysFromWhatOnItShows) {
  EXPECT_EQ(choice({4, 4, -4}, 0, 1, 0).width, 0);
  EXPECT_NEAR(choice({4, 4, -4}, 0, 1, 1 / 22.6274).width, 1 / 4.0, 1e-6);
}

TEST(IndexChoice, OfHiddenValuesThatMayBeInAnyOrderIsNotJudged) {
  const NodeOutcome unknown = judged({1, 3, 2}, 0, 2, 0.1);
  EXPECT_EQ(unknown.verdict, Verdict::inconclusive);
  EXPECT_FALSE(unknown.reason.empty());
  EXPECT_EQ(judged({1, 3, 2}, 1, 1, 0.1).verdict, Verdict::introduced) << "twice the same";
}

// The headers of this project promise an order; another engine may take any.
TEST(IndexChoice, OfEqualValuesIsTheFirstWhereThatIsPromised) {
  const std::vector<double> values = {4, 7, 4};
  for (const auto& [first, second, is_right] :
       {std::tuple{1, 0, true}, {0, 1, false}, {1, 2, false}, {2, 1, false}}) {
    EXPECT_EQ(choice(values, first, second, 0).node.verdict, Verdict::bitwise);
    const NodeOutcome held = choice(values, first, second, 0, Ties::first).node;
    EXPECT_EQ(held.verdict, is_right ? Verdict::bitwise : Verdict::introduced);
    EXPECT_EQ(held.finding.rule.find("order") == std::string::npos, is_right);
  }
  const NodeOutcome unknown = choice(values, 2, 1, 1 / 22.0, Ties::first).node;
  EXPECT_EQ(unknown.verdict, Verdict::bitwise) << "which of them are equal is not known";
}

// Two engines part there with no error of either, which is said of tokens.
TEST(IndexChoice, OfALaterOneOfEqualLogitsIsCounted) {
  const auto later = [](const std::vector<double>& values, int32_t token, double deviation) {
    Tensor of_values(Shape{1, 3}, DType::f64), of_deviation(Shape{1, 3}, DType::f64);
    Tensor chosen(Shape{1}, DType::i32);
    std::ranges::copy(values, of_values.as<double>());
    std::fill_n(of_deviation.as<double>(), 3, deviation);
    chosen.as<int32_t>()[0] = token;
    NodeRows node;
    node.rows = {{.request = 0, .position = 5}};
    const NodeOutcome judged = judge_choice(node, true, Ties::any, of_values, chosen,
                                            deviation > 0 ? of_deviation.view() : TensorView{})
                                   .node;
    EXPECT_EQ(judged.verdict, Verdict::bitwise);
    return judged.later_of_equals;
  };
  EXPECT_EQ(later({4, 7, 7}, 2, 0), 1);
  EXPECT_EQ(later({4, 7, 7}, 1, 0), 0);
  EXPECT_EQ(later({4, 7, 6}, 1, 0), 0);
  EXPECT_EQ(later({4, 7, 7}, 2, 1 / 22.0), 0) << "which of them are equal is not known";
  EXPECT_EQ(choice({4, 7, 7}, 2, 1, 0).node.later_of_equals, 0) << "experts go by their numbers";
}

// Which of the values is the largest beside a NaN, the headers of this project say too.
TEST(IndexChoice, OfNanIsWrongWhereItPassesOverIt) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const NodeOutcome over = choice({kInfinity, 7, kNan}, 0, 1, 0, Ties::first).node;
  EXPECT_EQ(over.verdict, Verdict::introduced);
  EXPECT_EQ(over.finding.want, 2);
  EXPECT_NE(over.finding.rule.find("a NaN is larger"), std::string::npos) << over.finding.rule;
  const NodeOutcome right = choice({kInfinity, 7, kNan}, 2, 0, 0, Ties::first).node;
  EXPECT_EQ(right.verdict, Verdict::nonfinite);
  EXPECT_TRUE(right.passes_on) << "it is not its fault that there is a NaN";
  EXPECT_EQ(choice({kNan, 7, kNan}, 2, 0, 0, Ties::first).node.verdict, Verdict::introduced);
  EXPECT_TRUE(choice({4, 7, kNan}, 0, 1, 0).node.passes_on) << "others promise nothing";
}

}  // namespace
}  // namespace lockstep
