// Two engines on two CUDA devices of one process give what each gives alone. Nothing of this runs
// on the CPU.
#include <thread>

#include "kernels/cuda/cuda_ops.h"
#include "src/engine/engine.h"
#include "tests/fixtures.h"

namespace lockstep {
namespace {

class TwoDevices : public testing::Test {
 protected:
  void SetUp() override {
    const int devices = lockstep_cuda_devices();
    if (devices < 2)
      GTEST_SKIP() << "two CUDA devices are needed, and this machine has " << devices;
    for (const int index : {0, 1}) {
      DeviceRuntime runtime;
      ops_ = lockstep_cuda_ops(index, &runtime);
      register_runtime(runtime);
    }
  }
  void TearDown() override { forget_runtimes(); }

  std::unique_ptr<Engine> engine_on(int index) const {
    auto engine = std::make_unique<Engine>(
        checkpoint_, *ops_,
        EngineOptions{.device = {DeviceKind::cuda, index}, .graph = true, .pages = 32});
    for (uint64_t seed : {1, 2})
      engine->submit(
          {.prompt = some_tokens(30 + static_cast<int64_t>(seed), checkpoint_.config().vocab, seed),
           .max_new = 20,
           .sampling = {.temperature = seed == 1 ? 0 : 0.9, .seed = seed}});
    return engine;
  }
  static std::vector<int32_t> tokens_of(const Engine& engine) {
    std::vector<int32_t> tokens = engine.sequence(0).tokens;
    tokens.insert(tokens.end(), engine.sequence(1).tokens.begin(), engine.sequence(1).tokens.end());
    return tokens;
  }
  static void serve(Engine& engine) {
    Probe probe;
    while (engine.step(probe)) {
    }
  }

  Checkpoint checkpoint_ = Checkpoint::open(data_path("bard-qwen3"));
  const Ops* ops_ = nullptr;
};

TEST_F(TwoDevices, ServeInTurnFromOneThread) {
  const auto alone = engine_on(0);
  serve(*alone);
  const auto first = engine_on(0), second = engine_on(1);
  Probe probe;
  for (bool more = true; more;) {
    more = first->step(probe);
    more = second->step(probe) || more;
  }
  EXPECT_EQ(tokens_of(*first), tokens_of(*alone));
  EXPECT_EQ(tokens_of(*second), tokens_of(*alone));
}

TEST_F(TwoDevices, ServeAtTheSameTimeFromTwoThreads) {
  const auto alone = engine_on(1);
  serve(*alone);
  const auto first = engine_on(0), second = engine_on(1);
  {
    const std::jthread one([&] { serve(*first); }), other([&] { serve(*second); });
  }
  EXPECT_EQ(tokens_of(*first), tokens_of(*alone));
  EXPECT_EQ(tokens_of(*second), tokens_of(*alone));
}

TEST_F(TwoDevices, RefuseAnOpWhoseTensorsLieOnBoth) {
  const Tensor a({8}, DType::f32, {DeviceKind::cuda, 0}), b({8}, DType::f32, {DeviceKind::cuda, 1});
  EXPECT_NE(error_of([&] { ops_->add({}, a, a, b); }).find("devices 0 and 1"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
