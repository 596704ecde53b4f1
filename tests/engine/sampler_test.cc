#include "src/engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "kernels/base/memory.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Row = std::vector<double>;
using Words = std::array<uint32_t, 4>;

// The known answers that Random123 publishes (kat_vectors, "philox4x32 10").
TEST(Philox, GivesTheKnownAnswersOfRandom123) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Uniform, IsTheTopOfTheKnownWordsAndEveryPartOfItsNameCounts) {
  // 53 bits of the first two words of the first known answer, the second one above.
  EXPECT_EQ(uniform(0, {}), static_cast<double>(0xe169c58d6627e8d5u >> 11) / 0x1p53);
  const std::set<double> draws = {uniform(0, {}),
                                  uniform(1, {}),
                                  uniform(uint64_t{1} << 32, {}),
                                  uniform(0, {1, 0}),
                                  uniform(0, {uint64_t{1} << 32, 0}),
                                  uniform(0, {0, 1})};
  EXPECT_EQ(draws.size(), 6u);
  for (uint64_t i = 0; i < 10000; ++i) {
    const double u = uniform(7, {i, 0});
    ASSERT_TRUE(u >= 0 && u < 1) << u;
  }
}

void expect_near(const Row& got, const Row& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-14) << "token " << i;
}

Row logs(const Row& values) {
  Row logits;
  for (double v : values) logits.push_back(std::log(v));
  return logits;
}

TEST(Probabilities, AreTheSoftmaxWhenNothingFilters) {
  expect_near(probabilities(logs({1, 2, 3, 4}), {.temperature = 1}, {}), {0.1, 0.2, 0.3, 0.4});
  expect_near(probabilities(logs({1, 4, 9, 16}), {.temperature = 2}, {}), {0.1, 0.2, 0.3, 0.4});
  expect_near(probabilities(Row{1000, 1000}, {.temperature = 1}, {}), {0.5, 0.5});
}

TEST(Probabilities, OfTemperatureZeroAreAllOnTheLargest) {
  expect_near(probabilities(Row{1, 3, 3, 2}, {}, {}), {0, 1, 0, 0});
  expect_near(probabilities(Row{1, 3, 2}, {.temperature = 1e-300}, {}), {0, 1, 0});
}

TEST(Probabilities, OfTheKMostLikelyKeepEqualsOfTheKth) {
  const Row logits = logs({1, 4, 2, 4, 2});
  expect_near(probabilities(logits, {.temperature = 1, .top_k = 1}, {}), {0, 0.5, 0, 0.5, 0});
  expect_near(probabilities(logits, {.temperature = 1, .top_k = 2}, {}), {0, 0.5, 0, 0.5, 0});
  const Row three = {0, 4. / 12, 2. / 12, 4. / 12, 2. / 12};
  expect_near(probabilities(logits, {.temperature = 1, .top_k = 3}, {}), three);
  const Row all = {1. / 13, 4. / 13, 2. / 13, 4. / 13, 2. / 13};
  expect_near(probabilities(logits, {.temperature = 1, .top_k = 5}, {}), all);
  expect_near(probabilities(logits, {.temperature = 1, .top_k = 500}, {}), all);
}

TEST(Probabilities, OfTopPAreTheFewestThatReachIt) {
  const Row logits = logs({1, 4, 2, 3});
  const auto of = [&](double p) {
    return probabilities(logits, {.temperature = 1, .top_p = p}, {});
  };
  expect_near(of(1e-9), {0, 1, 0, 0});
  expect_near(of(0.39), {0, 1, 0, 0});
  expect_near(of(0.41), {0, 4. / 7, 0, 3. / 7});
  expect_near(of(0.71), {0, 4. / 9, 2. / 9, 3. / 9});
  expect_near(of(0.91), {0.1, 0.4, 0.2, 0.3});
  // The smaller id of equals comes first, and not both: each is half of all.
  expect_near(probabilities(Row{5, 5}, {.temperature = 1, .top_p = 0.4}, {}), {1, 0});
}

TEST(Probabilities, OfMinPAreMeasuredByTheMostLikely) {
  const Row logits = logs({1, 4, 2, 3});
  const auto of = [&](double p) {
    return probabilities(logits, {.temperature = 1, .min_p = p}, {});
  };
  expect_near(of(0.24), {0.1, 0.4, 0.2, 0.3});
  expect_near(of(0.26), {0, 4. / 9, 2. / 9, 3. / 9});
  expect_near(of(1), {0, 1, 0, 0});
}

TEST(Probabilities, PenaliseEveryTokenOfTheTextOnce) {
  // 2 / 2, -1 * 2, and the rest as it is.
  const std::vector<int32_t> text = {0, 1, 0, 0};
  const Row penalised =
      probabilities(Row{2, -1, 1, -2}, {.temperature = 1, .repetition_penalty = 2}, text);
  expect_near(penalised, probabilities(Row{1, -2, 1, -2}, {.temperature = 1}, {}));
  // Greedy too, and it may change the largest.
  expect_near(probabilities(Row{2, -1, 1.5}, {.repetition_penalty = 2}, text), {0, 0, 1});
}

TEST(Probabilities, FilterInTheOrderOfHuggingFace) {
  // Temperature first: at 2 the weights are 1 2 3 4, of which 3 reach 0.71; at 1 two would.
  expect_near(probabilities(logs({1, 4, 9, 16}), {.temperature = 2, .top_p = 0.71}, {}),
              {0, 2. / 9, 3. / 9, 4. / 9});
  // top_k before top_p: of {4, 3} alone, 4 is 0.571 and reaches 0.5; of all four it is 0.4.
  expect_near(probabilities(logs({1, 4, 2, 3}), {.temperature = 1, .top_k = 2, .top_p = 0.5}, {}),
              {0, 1, 0, 0});
  // The penalty before all: 16 becomes 4, and 9 is the most likely.
  const std::vector<int32_t> text = {3};
  const Row logits = logs({2, 4, 9, 16});
  expect_near(probabilities(logits, {.temperature = 1, .top_k = 1, .repetition_penalty = 2}, text),
              {0, 0, 1, 0});
}

TEST(Probabilities, KeepWhatHasNone) {
  expect_near(probabilities(Row{-kInf, 0, 0}, {.temperature = 1}, {}), {0, 0.5, 0.5});
  expect_near(probabilities(Row{-kInf, 0, 0},
                            {.temperature = 1, .top_k = 3, .top_p = 0.99, .min_p = 0.5}, {}),
              {0, 0.5, 0.5});
}

TEST(Probabilities, WithoutADistributionAreOnTheArgmaxSoThatTroubleIsSeen) {
  for (const Sampling& s :
       {Sampling{.temperature = 1}, Sampling{}, Sampling{.temperature = 1, .top_k = 1}}) {
    expect_near(probabilities(Row{1, kNan, 3}, s, {}), {0, 1, 0});
    expect_near(probabilities(Row{1, 2, kInf}, s, {}), {0, 0, 1});
    expect_near(probabilities(Row{-kInf, -kInf}, s, {}), {1, 0});
  }
}

TEST(Pick, TakesTheFirstTokenThatReachesTheNumber) {
  const Row p = {0, 0.25, 0, 0.5, 0.25, 0};
  EXPECT_EQ(pick(p, 0), 1);
  EXPECT_EQ(pick(p, 0.2499), 1);
  EXPECT_EQ(pick(p, 0.25), 3);
  EXPECT_EQ(pick(p, 0.7499), 3);
  EXPECT_EQ(pick(p, 0.75), 4);
  EXPECT_EQ(pick(p, 1 - 0x1p-53), 4);
}

// Pearson's statistic of draws over the tokens that can come, against the chance of each.
double chi_square(const Row& chances, const Sampling& sampling, const TensorView& logits,
                  int draws) {
  std::vector<int> counts(chances.size());
  for (int i = 0; i < draws; ++i)
    ++counts[static_cast<size_t>(choose(logits, sampling, {}, {static_cast<uint64_t>(i), 0}))];
  double sum = 0;
  for (size_t t = 0; t < chances.size(); ++t) {
    if (chances[t] == 0) {
      EXPECT_EQ(counts[t], 0) << "token " << t << " was filtered out";
      continue;
    }
    const double expected = chances[t] * draws;
    sum += (counts[t] - expected) * (counts[t] - expected) / expected;
  }
  return sum;
}

TEST(Choose, DrawsEveryTokenAsOftenAsItsProbabilitySays) {
  // fp32 logits that are logarithms of 1..20: the exact chances are i / 210.
  constexpr int kTokens = 20;
  Tensor logits({1, kTokens}, DType::f32);
  Row all, top(kTokens, 0.0);
  for (int i = 0; i < kTokens; ++i) {
    logits.view().as<float>()[i] = static_cast<float>(std::log(1.0 + i));
    all.push_back((1.0 + i) / 210);
  }
  for (size_t i = 16; i < kTokens; ++i) top[i] = (1.0 + static_cast<double>(i)) / 74;
  // The 99.9 % point of chi-square: 43.82 for 19 degrees of freedom, 16.27 for 3.
  for (uint64_t seed : {0, 1, 2, 3}) {
    EXPECT_LE(chi_square(all, {.temperature = 1, .seed = seed}, logits, 20000), 43.82);
    EXPECT_LE(chi_square(top, {.temperature = 1, .top_k = 4, .seed = seed}, logits, 20000), 16.27);
  }
  // The statistic sees a distribution that is another one.
  EXPECT_GT(chi_square(all, {.temperature = 1.2, .seed = 0}, logits, 20000), 43.82);
}

TEST(Choose, ReadsEveryDtypeAndRefusesWhatIsNoRow) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Tensor logits({1, 3}, dtype);
    for (int i = 0; i < 3; ++i) {
      const float value = i == 1 ? 2.0f : -1.0f;
      if (dtype == DType::f32) logits.view().as<float>()[i] = value;
      if (dtype == DType::bf16) logits.view().as<BFloat16>()[i] = from_float<BFloat16>(value);
      if (dtype == DType::f16) logits.view().as<Float16>()[i] = from_float<Float16>(value);
    }
    EXPECT_EQ(choose(logits, {.temperature = 1, .top_k = 1}, {}, {}), 1);
  }
  Tensor two({2, 3}, DType::f32);
  EXPECT_NE(error_of([&] { choose(two, {}, {}, {}); }).find("[2, 3]"), std::string::npos);
}

TEST(LogprobsOf, AreOfTheModelAndSortedWithTheChosenOne) {
  Tensor logits({1, 4}, DType::f32);
  const float values[] = {1, 4, 2, 4};
  std::transform(std::begin(values), std::end(values), logits.view().as<float>(),
                 [](float v) { return std::log(v); });
  const Logprobs found = logprobs_of(logits, 0, 3);
  EXPECT_EQ(found.chosen.token, 0);
  EXPECT_NEAR(found.chosen.logprob, std::log(1. / 11), 1e-6);
  ASSERT_EQ(found.top.size(), 3u);
  const int32_t order[] = {1, 3, 2};
  const double chances[] = {4. / 11, 4. / 11, 2. / 11};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(found.top[i].token, order[i]);
    EXPECT_NEAR(found.top[i].logprob, std::log(chances[i]), 1e-6);
  }
  EXPECT_EQ(logprobs_of(logits, 0, 9).top.size(), 4u) << "there are no more tokens";
}

TEST(CheckSampling, RefusesWhatIsOutOfRange) {
  const auto sentence = [](const Sampling& s) {
    return error_of([&] { s.check_ranges("request 3"); });
  };
  Sampling{}.check_ranges("request 3");
  Sampling{1, 5, 0.5, 0.5, 1.1, 7, 3}.check_ranges("request 3");
  EXPECT_EQ(sentence({.temperature = -1}),
            "request 3 asks for the temperature -1, but it must be 0 (greedy) to 1e6");
  EXPECT_NE(sentence({.temperature = kNan}).find("nan"), std::string::npos);
  EXPECT_NE(sentence({.temperature = kInf}).find("inf"), std::string::npos);
  EXPECT_NE(sentence({.top_k = -1}).find("top_k -1"), std::string::npos);
  EXPECT_NE(sentence({.top_p = 0}).find("top_p 0"), std::string::npos);
  EXPECT_NE(sentence({.top_p = 1.1}).find("top_p 1.1"), std::string::npos);
  EXPECT_NE(sentence({.top_p = kNan}).find("top_p nan"), std::string::npos);
  EXPECT_NE(sentence({.min_p = -0.1}).find("min_p -0.1"), std::string::npos);
  EXPECT_NE(sentence({.min_p = 2}).find("min_p 2"), std::string::npos);
  EXPECT_NE(sentence({.repetition_penalty = 0}).find("repetition_penalty 0"), std::string::npos);
  EXPECT_NE(sentence({.logprobs = -1}).find("-1 logprobs"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
