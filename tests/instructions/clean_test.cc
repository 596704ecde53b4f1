// Both bundled checkpoints and one with experts, computed instruction by instruction in orders by
// chance: judged clean in every dtype, for one queue and for as many as a device has
// multiprocessors.
#include <gtest/gtest.h>

#include <cstdlib>

#include "src/schedule/make_schedule.h"
#include "tests/judged.h"
#include "tests/whole.h"

namespace lockstep {
namespace {

// Interleavings of each model, dtype and number of queues: as many as a CTest run has time for, or
// as LOCKSTEP_INTERLEAVINGS of the environment says.
uint64_t interleavings() {
  if (const char* wanted = std::getenv("LOCKSTEP_INTERLEAVINGS")) return std::stoull(wanted);
  return whole() ? 200 : 1;
}

class CleanSteps : public testing::TestWithParam<std::tuple<const char*, DType, int>> {
 protected:
  Checkpoint checkpoint_ = Checkpoint::open(data_path(std::get<0>(GetParam())));
  DType dtype_ = std::get<1>(GetParam());
  std::shared_ptr<Timeline> timeline_;  // of the last run

  // Two requests of unlike lengths, so that a share of attention may hold pages of one alone.
  Result run(Schedule schedule, uint64_t seed) {
    JudgedRun run{.checkpoint = checkpoint_, .reference = open_reference()};
    run.engine = {.dtype = dtype_, .page_size = 2, .page_order_seed = seed, .chunk = 5};
    timeline_ = std::make_shared<Timeline>();
    run.step = InterpreterOptions{std::move(schedule), {.seed = seed}, timeline_};
    const int64_t vocab = checkpoint_.config().vocab;
    run.requests = {{.prompt = some_tokens(7, vocab, 2 * seed), .max_new = 2},
                    {.prompt = some_tokens(3, vocab, 2 * seed + 1), .max_new = 2}};
    run.engine.pages = pages_for(run.requests, run.engine.page_size);
    return judge_run(run);
  }
};

TEST_P(CleanSteps, InEveryOrderOfInstructions) {
  const int queues = std::get<2>(GetParam());
  for (uint64_t seed = 1; seed <= interleavings(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    // By turns cut into one to three shares.
    const auto shares = 1 + static_cast<int64_t>((seed + static_cast<uint64_t>(queues)) % 3);
    const Schedule schedule = make_schedule(scheduled_model(checkpoint_.config()),
                                            {.queues = queues, .kv_shares = shares});
    const Result result = run(schedule, seed);
    ASSERT_TRUE(timeline_->last) << "no instruction was run";
    ASSERT_EQ(timeline_->last().size(), schedule.instructions.size());
    ASSERT_EQ(result.verdict, RunVerdict::clean) << result.story;
    ASSERT_GT(result.judged, 0);
    ASSERT_EQ(result.judged, result.expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, CleanSteps,
                         testing::Combine(testing::Values("bard-qwen3", "bard-qwen2.5",
                                                          "tiny/qwen3-moe"),
                                          testing::Values(DType::f32, DType::bf16, DType::f16),
                                          testing::Values(1, 4, 132)));

}  // namespace
}  // namespace lockstep
