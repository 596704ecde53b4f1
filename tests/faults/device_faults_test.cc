// Bugs that only a device's kernels can have are named where they are. Nothing of this runs on the
// CPU, where they are refused.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/judge/verdict.h"
#include "tests/judged.h"

namespace lockstep {
namespace {

// K of a pool of more than 2^31 elements in bard-qwen3, which has rows of 128, by half as much.
constexpr int64_t kPages = 3 << 19, kPageSize = 16;

JudgedRun run_of(const Checkpoint& checkpoint, const std::string& fault, bool graph) {
  JudgedRun run{.checkpoint = checkpoint,
                .reference = open_reference(),
                .engine = {.device = TestDevice::device(),
                           .graph = graph,
                           .dtype = DType::bf16,
                           .page_size = kPageSize,
                           .page_order_seed = 3}};
  if (!fault.empty()) run.faults = {parse_fault(fault)};
  for (int64_t r = 0; r < 3; ++r)
    run.requests.push_back({.prompt = some_tokens(21 + 17 * r, checkpoint.config().vocab,
                                                  static_cast<uint64_t>(r + 1)),
                            .max_new = 5});
  run.engine.pages = pages_for(run.requests, kPageSize);
  return run;
}

class DeviceFaults : public testing::TestWithParam<const char*> {
 protected:
  Checkpoint checkpoint_ = Checkpoint::open(data_path("bard-qwen3"));
};

TEST_P(DeviceFaults, IsNamedWhereItIs) {
  if (TestDevice::device() == Device::cpu)
    GTEST_SKIP() << "these are bugs of a CUDA device's kernels: LOCKSTEP_DEVICE names none";
  const std::string name = GetParam();
  const Fault& fault = fault_of(parse_fault(name));
  for (const int layer : {0, 5})
    for (const bool graph : {false, true}) {
      const Result result =
          judge_run(run_of(checkpoint_, name + "@layer=" + std::to_string(layer), graph));
      ASSERT_TRUE(result.first) << result.story;
      EXPECT_EQ(result.first->node.place.point->name, fault.point) << result.story;
      EXPECT_EQ(result.first->node.place.layer, layer) << result.story;
    }
}

TEST_P(DeviceFaults, IsRefusedOnTheCpu) {
  JudgedRun run = run_of(checkpoint_, GetParam(), false);
  run.engine.device = Device::cpu;
  const std::string trouble = error_of([&] { judge_run(run); });
  EXPECT_NE(trouble.find(GetParam()), std::string::npos) << trouble;
  EXPECT_NE(trouble.find("--device cuda"), std::string::npos) << trouble;
}

INSTANTIATE_TEST_SUITE_P(Every, DeviceFaults,
                         testing::Values("norm-without-barrier", "output-tile-uninitialised"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// A pool that is really there: in it the engine is clean, and offsets of 32 bits are not.
TEST(LargePool, OffsetsOf32BitsAreNamed) {
  if (TestDevice::device() == Device::cpu)
    GTEST_SKIP() << "these are bugs of a CUDA device's kernels: LOCKSTEP_DEVICE names none";
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  const ModelConfig& c = checkpoint.config();
  ASSERT_GT(kPages * kPageSize * c.kv_heads * c.head_dim, int64_t{1} << 31);
  const int64_t needed = kPages * kPageSize * c.kv_bytes_per_token(DType::bf16);
  if (device_memory_left(TestDevice::device()) < needed + (int64_t{4} << 30))
    GTEST_SKIP() << "the pool takes " << needed << " bytes, more than this device has left";
  for (const bool seeded : {false, true}) {
    JudgedRun run = run_of(checkpoint, seeded ? "pool-offset-32-bit@layer=2" : "", false);
    run.engine.pages = kPages;
    const Result result = judge_run(run);
    EXPECT_EQ(result.verdict, seeded ? RunVerdict::diverged : RunVerdict::clean) << result.story;
    if (!seeded) continue;
    ASSERT_TRUE(result.first) << result.story;
    EXPECT_EQ(result.first->node.place.point->name, "attn.kv") << result.story;
    EXPECT_EQ(result.first->node.place.layer, 2) << result.story;
  }
}

// Where no page lies past 2^31 elements, nothing wraps.
TEST(LargePool, InASmallPoolOffsetsOf32BitsAreEnough) {
  if (TestDevice::device() == Device::cpu)
    GTEST_SKIP() << "these are bugs of a CUDA device's kernels: LOCKSTEP_DEVICE names none";
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  const Result result = judge_run(run_of(checkpoint, "pool-offset-32-bit", true));
  EXPECT_EQ(result.verdict, RunVerdict::clean) << result.story;
}

}  // namespace
}  // namespace lockstep
