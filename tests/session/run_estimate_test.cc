#include "src/session/run_estimate.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "src/weights/config.h"
#include "tests/places.h"

namespace lockstep {
namespace {

RunEstimate estimate_of(int64_t prompt, int64_t max_new, const EngineOptions& options) {
  Request request{.max_new = max_new};
  request.prompt.resize(static_cast<size_t>(prompt));
  const ModelConfig config = read_config(source_path("tests/data/bard-qwen3"));
  return estimate_judging(config, options, {request});
}

// Seconds of one core that these runs took.
TEST(RunEstimate, IsWithinAFactorOfThreeOfWhatRunsTook) {
  const struct {
    int64_t prompt, max_new;
    double seconds;
  } measured[] = {{500, 1, 4.5}, {1000, 1, 11.8}, {2000, 1, 36.3}, {2, 100, 3.9}, {2, 400, 19.4}};
  for (const auto& run : measured) {
    const double seconds = estimate_of(run.prompt, run.max_new, {.threads = 1}).seconds;
    EXPECT_GT(seconds, run.seconds / 3) << run.prompt << " and " << run.max_new;
    EXPECT_LT(seconds, run.seconds * 3) << run.prompt << " and " << run.max_new;
  }
  EXPECT_EQ(estimate_of(500, 4, {}).tokens, 504);
}

// Of the Qwen3-0.6B shape on an H100 with 16 cores.
TEST(RunEstimate, OfADeviceIsWithinAFactorOfThreeToo) {
  ModelConfig config = read_config(source_path("tests/data/bard-qwen3"));
  config.hidden = 1024, config.layers = 28, config.heads = 16, config.kv_heads = 8;
  config.head_dim = 128, config.intermediate = 3072, config.vocab = 151936;
  const std::pair<size_t, double> measured[] = {{2048, 15.1}, {8192, 66.8}};
  for (const auto& [prompt, took] : measured) {
    Request request{.max_new = 1};
    request.prompt.resize(prompt);
    const EngineOptions on_device{.device = {DeviceKind::cuda, 0}, .threads = 16};
    const double seconds = estimate_judging(config, on_device, {request}).seconds;
    EXPECT_GT(seconds, took / 3) << prompt;
    EXPECT_LT(seconds, took * 3) << prompt;
  }
}

TEST(RunEstimate, CountsPassesAndThreads) {
  const EngineOptions one{.threads = 1};
  EXPECT_GT(estimate_of(500, 1, {.chunk = 1, .threads = 1}).seconds,
            2 * estimate_of(500, 1, one).seconds);
  EXPECT_DOUBLE_EQ(estimate_of(500, 1, {.threads = 4}).seconds * 4,
                   estimate_of(500, 1, one).seconds);
}

std::string notice_of(double seconds) {
  const RunEstimate five{.tokens = 5, .seconds = seconds};
  return five.notice();
}

TEST(RunEstimate, IsNoticedAboveAMinute) {
  EXPECT_EQ(notice_of(59), "");
  EXPECT_TRUE(notice_of(180).starts_with("5 tokens to judge take about 3 minutes here: "));
  EXPECT_NE(notice_of(36e3).find("10 hours"), std::string::npos);
  EXPECT_NE(notice_of(864e4).find("100 days"), std::string::npos);
  EXPECT_NE(estimate_of(2, 65535, {.threads = 2}).notice(), "");
  EXPECT_NE(estimate_of(1000000, 1, {.threads = 64}).notice(), "");
  EXPECT_EQ(estimate_of(2, std::numeric_limits<int64_t>::max(), {}).notice(), "")
      << "no engine takes it";
  EXPECT_EQ(estimate_of(20, 16, {.threads = 1}).notice(), "");
}

}  // namespace
}  // namespace lockstep
