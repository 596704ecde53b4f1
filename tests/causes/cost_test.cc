// The time that looking for causes takes, beside that of the judged run itself.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <ctime>

#include "tests/judged.h"

namespace lockstep {
namespace {

// Of all threads, so that what else the machine does is not counted.
double processor_seconds(const JudgedRun& run, Result* result) {
  const std::clock_t begin = std::clock();
  *result = judged(run);
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

// 100 tokens and 32 more, with a fault, first without and then with causes.
struct Cost {
  double run = 0, causes = 0;
  std::string place;
};

Cost cost_of(const std::string& fault) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  JudgedRun run{.checkpoint = checkpoint, .reference = open_reference()};
  run.engine.dtype = DType::bf16;
  run.engine.threads = 1;
  run.judge.threads = 1;
  run.requests = {{.prompt = some_tokens(100, checkpoint.config().vocab), .max_new = 32}};
  if (!fault.empty()) run.faults = {parse_fault(fault)};
  Cost cost;
  Result result;
  run.causes = false;
  cost.run = processor_seconds(run, &result);
  run.causes = true;
  cost.causes = processor_seconds(run, &result) - cost.run;
  if (result.first) cost.place = result.first->node.place.point->name;
  return cost;
}

TEST(Causes, TakeLessThanTwiceTheTimeOfTheRunThatTheyAreOf) {
  for (const char* fault :
       {"norm-gain-plus-one@layer=2", "qk-norm-over-16-wide-blocks@layer=2",
        "weight-layout-transposed@layer=2", "rope-interleaved@layer=2", "gqa-map-modulo@layer=2",
        "gelu-for-silu@layer=2", "residual-twice@layer=2", "head-is-stale",
        "one-element-off@layer=2", "causal-mask-off-by-one@layer=2"}) {
    const Cost cost = cost_of(fault);
    fmt::print("{:36} {:14} run {:.2f} s, causes {:.2f} s: {:.2f} x\n", fault, cost.place, cost.run,
               cost.causes, cost.causes / cost.run);
    EXPECT_FALSE(cost.place.empty()) << fault;
    EXPECT_LT(cost.causes, 2 * cost.run) << fault;
  }
}

TEST(Causes, TakeNoTimeWhenNothingIsWrong) {
  const Cost cost = cost_of("");
  fmt::print("run {:.2f} s, causes {:.2f} s\n", cost.run, cost.causes);
  EXPECT_LT(cost.causes, cost.run / 4) << "what two runs differ by";
}

}  // namespace
}  // namespace lockstep
