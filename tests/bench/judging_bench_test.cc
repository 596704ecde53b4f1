#include "src/bench/judging_bench.h"

#include <cmath>
#include <random>

#include "src/bench/judging_growth.h"
#include "src/report/output.h"
#include "tests/device.h"
#include "tests/fixtures.h"
#include "tests/report/json_schema.h"

namespace lockstep {
namespace {

void expect_times(const JudgingTimes::Pass& times, size_t samples) {
  for (const std::vector<double>* list : {&times.model, &times.ops, &times.whole}) {
    EXPECT_EQ(list->size(), samples);
    for (const double seconds : *list) EXPECT_GT(seconds, 0);
  }
}

TEST(JudgingBench, TimesPassesThatDecodeAndAPrompt) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-default"));
  const JudgingTimes times = time_judging(checkpoint, TestDevice::device(), 2);
  expect_times(times.decode, 5);
  EXPECT_EQ(times.tokens, 128);
  expect_times(times.prompt, 3);
  EXPECT_EQ(times.rows, 64);
  EXPECT_LT(times.extra_bytes, 2e9);
}

const std::vector<double> kSizes = {8, 16, 32, 64};

TEST(PowerFit, FindsTheExponentOfALaw) {
  for (const double exponent : {-1.0, 0.0, 0.5, 1.0, 2.0}) {
    std::vector<double> costs;
    for (const double size : kSizes) costs.push_back(3e-3 * std::pow(size, exponent));
    const PowerFit fit = fit_power(kSizes, costs);
    EXPECT_NEAR(fit.exponent, exponent, 1e-12);
    EXPECT_NEAR(fit.error, 0, 1e-6);
    if (exponent != 0) {
      EXPECT_NEAR(fit.explained, 1, 1e-12);
    }
  }
}

// Noise that lies across both the mean and the slope leaves the law, and its size is the error's.
TEST(PowerFit, SaysHowFarTheExponentMayBeOff) {
  const double noise[] = {0.1, -0.1, -0.1, 0.1}, exponent = 1.5;
  std::vector<double> costs;
  for (size_t i = 0; i < kSizes.size(); ++i)
    costs.push_back(std::pow(kSizes[i], exponent) * std::exp(noise[i]));
  const PowerFit fit = fit_power(kSizes, costs);
  const double xx = 5 * std::pow(std::log(2.0), 2), rest = 4 * 0.1 * 0.1;
  EXPECT_NEAR(fit.exponent, exponent, 1e-12);
  EXPECT_NEAR(fit.error, std::sqrt(rest / 2 / xx), 1e-12);
  EXPECT_NEAR(fit.explained, 1 - rest / (exponent * exponent * xx + rest), 1e-12);
}

// Student's t at 95 % for the two degrees that four sizes leave is 4.303.
TEST(PowerFit, IsWithinItsErrorAsOftenAsItShouldBe) {
  std::mt19937 random(3);
  std::normal_distribution<double> noise(0, 0.05);
  int within = 0;
  for (int i = 0; i < 4000; ++i) {
    std::vector<double> costs;
    for (const double size : kSizes) costs.push_back(std::pow(size, 1.2) * std::exp(noise(random)));
    const PowerFit fit = fit_power(kSizes, costs);
    within += std::fabs(fit.exponent - 1.2) <= 4.303 * fit.error ? 1 : 0;
  }
  EXPECT_NEAR(within, 3800, 60);  // over four deviations
}

TEST(PowerFit, SaysNothingOfTwoSizesOrOfNoCost) {
  const std::vector<double> two = {1, 2}, nothing = {1, 2, 0, 3};
  EXPECT_TRUE(std::isnan(fit_power(two, two).exponent));
  EXPECT_TRUE(std::isnan(fit_power(two, two).error));
  EXPECT_TRUE(std::isnan(fit_power(kSizes, nothing).exponent));
  EXPECT_TRUE(std::isnan(fit_power(kSizes, nothing).explained));
}

TEST(JudgingGrowth, MeasuresAllThatGrows) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-default"));
  std::vector<std::string> shown;
  const std::vector<Growth> growths =
      measure_growth(checkpoint, TestDevice::device(), 2, /*seconds=*/0,
                     [&](const std::string& what) { shown.push_back(what); });
  const std::vector<std::vector<double>> sizes = {
      {8, 16, 32, 64}, {4, 8, 16, 32}, {8, 16, 32, 64}, {1, 2, 3}};
  ASSERT_EQ(growths.size(), sizes.size());
  for (size_t i = 0; i < growths.size(); ++i) {
    const Growth& growth = growths[i];
    EXPECT_EQ(growth.sizes, sizes[i]) << growth.what;
    ASSERT_EQ(growth.seconds.size(), growth.sizes.size()) << growth.what;
    ASSERT_EQ(growth.bytes.size(), growth.sizes.size()) << growth.what;
    for (const double seconds : growth.seconds) EXPECT_GT(seconds, 0) << growth.what;
    for (const double bytes : growth.bytes) EXPECT_GE(bytes, 0) << growth.what;
    EXPECT_TRUE(std::isfinite(growth.of_time().exponent)) << growth.what;
  }
  EXPECT_EQ(shown.size(), 15U);
  EXPECT_EQ(shown.front(), "tokens of a prompt: 8");

  const Json rows = Json::parse(text_of(table_of("tiny", growths), "json"));
  ASSERT_EQ(rows.size(), 8U);
  EXPECT_EQ(violation(rows, schema_of("bench"), schema_of("bench")), "");
  EXPECT_EQ(rows[0]["sizes"], "8 16 32 64");
  EXPECT_EQ(rows[0]["cost"], "time");
  EXPECT_EQ(rows[7]["cost"], "memory");
  EXPECT_EQ(rows[7]["grows"], "layers, for a prompt of 64");
}

}  // namespace
}  // namespace lockstep
