#include "src/bench/judging_bench.h"

#include "tests/device.h"
#include "tests/fixtures.h"

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

}  // namespace
}  // namespace lockstep
