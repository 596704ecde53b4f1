// The bench's meter sees the passes of an engine.
#include "src/bench/meter.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "src/engine/engine.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kSleep{20};

std::vector<PassMeter::Pass> passes_with(const Ops& ops) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-moe"));
  PassMeter meter(ops);
  Engine engine(checkpoint, meter.ops(), {.dtype = DType::bf16, .pages = 8},
                {.before_pass = [&](Batch&) { meter.before_pass(); }});
  engine.submit({.prompt = some_tokens(5, checkpoint.config().vocab), .max_new = 3});
  std::vector<PassMeter::Pass> passes;
  for (Probe probe; engine.step(probe);) passes.push_back(meter.pass());
  return passes;
}

TEST(PassMeter, CountsTheProductsOfExpertsAsProducts) {
  Ops ops = cpu_ops();
  wrap(ops.expert_matmul, [](const auto& op, const OpContext& context, const auto&... arguments) {
    std::this_thread::sleep_for(kSleep);
    op(context, arguments...);
  });
  const double least = std::chrono::duration<double>(kSleep).count();
  for (const PassMeter::Pass& pass : passes_with(ops)) {
    EXPECT_GE(pass.matmul, least);
    EXPECT_TRUE(pass.finite);
  }
}

TEST(PassMeter, ShowsAnExpertThatLeavesItsOutputUnwritten) {
  Ops ops = cpu_ops();
  int calls = 0;
  wrap(ops.expert_matmul,
       [&calls](const auto& op, const OpContext& context, const auto&... arguments) {
         if (context.point != "mlp.expert_down" || ++calls % 2 == 1) op(context, arguments...);
       });
  const auto passes = passes_with(ops);
  ASSERT_EQ(passes.size(), 3u);
  EXPECT_TRUE(passes[0].finite);
  EXPECT_FALSE(passes[2].finite);
}

// What is gathered of the cache for a probe is gone by the next pass, and other things lie there.
TEST(PassMeter, LeavesTheMemoryOfWhatAProbeWasShown) {
  PassMeter meter(cpu_ops());
  const Ops ops = meter.ops();
  const auto zeros = [](const Shape& shape) {
    Tensor tensor(shape, DType::f32);
    std::memset(tensor.view().data, 0, tensor.view().bytes());
    return tensor;
  };
  const Tensor k = zeros({1, 2, 1, 4}), v = zeros({1, 2, 1, 4}), shown = zeros({2, 2, 1, 4});
  const Tensor x = zeros({2, 4}), sum = zeros({2, 4});
  const Tensor table({1}, DType::i32);
  *table.as<int32_t>() = 0;
  ops.kv_gather({}, shown, {k, v}, table);
  ops.add({}, sum, x, x);
  meter.before_pass();
  for (int64_t i = 0; i < shown.view().count(); ++i) EXPECT_EQ(shown.as<float>()[i], 0);
  EXPECT_TRUE(std::isnan(sum.as<float>()[0]));
}

}  // namespace
}  // namespace lockstep
