#include <gtest/gtest.h>

#include <set>

#include "src/faults/faults.h"
#include "tests/fixtures.h"

namespace lockstep {
namespace {

TEST(Faults, NamesAreUniqueAndPointAtPoints) {
  std::set<std::string_view> names;
  for (const Fault& fault : faults()) {
    EXPECT_TRUE(names.insert(fault.name).second) << fault.name;
    EXPECT_NE(find_point(fault.point), nullptr) << fault.name;
    EXPECT_FALSE(fault.needs.empty()) << fault.name;
  }
  EXPECT_GE(names.size(), 10u);
}

TEST(Faults, ARequestIsNameLayerSizeAndRank) {
  EXPECT_EQ(parse_fault("wrong-page").rank, -1);
  EXPECT_EQ(parse_fault("wrong-page@layer=3,rank=1").rank, 1);
  EXPECT_EQ(parse_fault("wrong-page").layer, -1);
  EXPECT_EQ(parse_fault("wrong-page@layer=3").layer, 3);
  const FaultRequest sized = parse_fault("rms-norm-eps@layer=0,size=1e-4");
  EXPECT_EQ(sized.layer, 0);
  EXPECT_EQ(sized.size, 1e-4);
}

TEST(Faults, BadRequestsAreRefusedWithASentence) {
  const auto says = [](const std::string& text, const std::string& part) {
    const std::string error = error_of([&] { parse_fault(text); });
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  says("rope-interleavd", "did you mean \"rope-interleaved\"");
  says("", "no fault is called ''");
  says("wrong-page@", "ends after '@'");
  says("wrong-page@layer=two", "a number was wanted");
  says("wrong-page@layer=2x", "a number was wanted");
  says("wrong-page@head=2", "the keys are layer, size and rank");
}

TEST(Faults, AFaultThatTheModelCannotHaveIsRefused) {
  const Checkpoint qwen2 = Checkpoint::open(data_path("bard-qwen2.5"));
  Ops ops = cpu_ops();
  Engine::Hooks hooks;
  const auto seed = [&](const std::string& text) {
    return error_of([&] { seed_fault({ops, hooks, qwen2.config()}, parse_fault(text)); });
  };
  EXPECT_NE(seed("qk-norm-missing@layer=1").find("it needs QK-norm"), std::string::npos);
  EXPECT_NE(seed("wrong-page@layer=6").find("layers are 0..5"), std::string::npos);
  EXPECT_NE(seed("wrong-page@layer=1,size=2").find("has no size"), std::string::npos);
}

TEST(Faults, ALayerOrASizeThatMakesNoSenseIsRefused) {
  const auto seed = [](const std::string& model, const std::string& text) {
    const Checkpoint checkpoint = Checkpoint::open(data_path(model));
    Ops ops = cpu_ops();
    Engine::Hooks hooks;
    return error_of([&] { seed_fault({ops, hooks, checkpoint.config()}, parse_fault(text)); });
  };
  const auto says = [](const std::string& error, const std::string& part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  for (const Fault& fault : faults())
    if (!fault.one_layer)
      says(seed("bard-qwen3", std::string(fault.name) + "@layer=0"), "leave out layer=0");
  const std::string sliding = "sliding-window-off-by-one@";
  says(seed("tiny/qwen2-sliding", sliding + "size=2"), "found 2");
  says(seed("tiny/qwen2-sliding", sliding + "size=0.5"), "found 0.5");
  says(seed("tiny/qwen2-sliding", sliding + "layer=0"), "which layer 0 has not");
  says(seed("bard-qwen3", sliding + "size=1"), "it needs a model with a sliding window");
  says(seed("bard-qwen3", "slot-offset-32-bit@size=12.5"), "found 12.5");
  says(seed("bard-qwen3", "slot-offset-32-bit@size=63"), "from 1 to 62");
  says(seed("bard-qwen3", "slot-offset-32-bit@size=-1"), "found -1");
  for (const char* fault :
       {"rope-positions-16-bit", "accumulator-16-bit", "split-merge-max-missing",
        "split-without-keys", "activation-overflows-fp16"})
    says(seed("bard-qwen3", std::string(fault) + "@size=-2"), "found -2");
  says(seed("bard-qwen3", "accumulator-16-bit@size=2.5"), "found 2.5");
  says(seed("bard-qwen3", "rope-positions-16-bit@size=32"), "from 1 to 31");
  says(seed("bard-qwen3", "bias-dropped"), "it needs biases of q, k and v");
  says(seed("tiny/qwen3-untied-sharded", "head-is-stale"), "it needs lm_head tied");
  says(seed("tiny/qwen3-moe", "gelu-for-silu@layer=0"), "needs a layer with one MLP");
  says(seed("bard-qwen3", "yarn-factor-twice"), "it needs a model with YaRN");
  says(seed("tiny/qwen3-yarn", "rope-theta-ignored"), "it needs a rope_theta other than 10000");
}

}  // namespace
}  // namespace lockstep
