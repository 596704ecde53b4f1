// Bugs that only replayed graphs can have are named at the op that they hurt first. Nothing of this
// runs on the CPU, where they are refused.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/judge/verdict.h"
#include "src/session/modes.h"
#include "tests/judged.h"

namespace lockstep {
namespace {

JudgedRun run_of(const Checkpoint& checkpoint, const std::string& fault, size_t requests) {
  JudgedRun run{.checkpoint = checkpoint,
                .reference = open_reference(),
                .engine = {.graph = TestDevice::device() != Device::cpu,
                           .dtype = DType::bf16,
                           .page_size = 4,
                           .page_order_seed = 3},
                .faults = {parse_fault(fault)}};
  for (size_t r = 0; r < requests; ++r)
    run.requests.push_back(
        {.prompt = some_tokens(9 + static_cast<int64_t>(r), checkpoint.config().vocab, r + 1),
         .max_new = 8});
  return run;
}

struct Case {
  const char* fault;
  const char* point;
  int layer;
};

class GraphFaults : public testing::TestWithParam<Case> {
 protected:
  Checkpoint checkpoint_ = Checkpoint::open(data_path("bard-qwen3"));
};

TEST_P(GraphFaults, IsNamedWhereItHurtsFirst) {
  if (TestDevice::device() == Device::cpu)
    GTEST_SKIP() << "graphs are a CUDA device's: LOCKSTEP_DEVICE names none";
  const auto& [fault, point, layer] = GetParam();
  // Three requests in a graph for four: there is a padded row.
  const Result result = judged(run_of(checkpoint_, fault, 3));
  ASSERT_TRUE(result.first) << result.story;
  EXPECT_EQ(result.first->node.place.point->name, point) << result.story;
  EXPECT_EQ(result.first->node.place.layer, layer) << result.story;

  JudgedRun run = run_of(checkpoint_, fault, 3);
  run.engine.device = TestDevice::device();
  const Result modes = run_modes({.checkpoint = checkpoint_,
                                  .engine = run.engine,
                                  .requests = run.requests,
                                  .faults = run.faults,
                                  .modes = modes_from("graph"),
                                  .ops = ops_of(run.engine.device)});
  ASSERT_TRUE(modes.first) << modes.story;
  EXPECT_EQ(modes.first->node.place.layer, layer) << modes.story;
  EXPECT_EQ(modes.first->node.place.point->name, point) << modes.story;
}

TEST_P(GraphFaults, IsRefusedWithoutGraphs) {
  JudgedRun run = run_of(checkpoint_, GetParam().fault, 1);
  run.engine.graph = false;
  const std::string trouble = error_of([&] { judged(run); });
  EXPECT_NE(trouble.find(GetParam().fault), std::string::npos) << trouble;
  EXPECT_NE(trouble.find("--device cuda"), std::string::npos) << trouble;
}

INSTANTIATE_TEST_SUITE_P(Every, GraphFaults,
                         testing::Values(Case{"graph-replays-stale-positions", "rope.cos", -1},
                                         Case{"padded-row-writes-live-slot", "attn.kv", 0}),
                         [](const auto& info) {
                           std::string name = info.param.fault;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(PaddedRow, WithoutPaddingNothingIsWrittenWhereItShouldNotBe) {
  if (TestDevice::device() == Device::cpu)
    GTEST_SKIP() << "graphs are a CUDA device's: LOCKSTEP_DEVICE names none";
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  const Result result = judged(run_of(checkpoint, "padded-row-writes-live-slot", 4));
  EXPECT_EQ(result.verdict, RunVerdict::clean) << result.story;
}

}  // namespace
}  // namespace lockstep
