// lockstep diff as a user meets it; what it computes is tested beside src/diff/diff.cc.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/lockstep_binary.h"
#include "tests/places.h"
#include "tests/tools/written_trace.h"

namespace lockstep {
namespace {

class Diff : public testing::Test {
 protected:
  void SetUp() override {
    TearDown();
    write_trace(a_, serve_with(cpu_ops()));
  }
  void TearDown() override {
    for (const std::string& path : {a_, b_}) std::filesystem::remove_all(path);
  }

  static Served serve_with(Ops ops) {
    const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
    return serve(checkpoint, {.dtype = DType::bf16}, {{.prompt = {5, 6, 7}, .forced = {9, 10}}},
                 std::move(ops));
  }
  // The CPU's ops, with the SiLU of one layer doubled.
  static Ops wrong_in(int layer) {
    Ops ops = cpu_ops();
    ops.silu_mul = [layer, right = ops.silu_mul](const OpContext& context, TensorView out,
                                                 TensorView gate, TensorView up) {
      right(context, out, gate, up);
      for (int64_t i = 0; context.layer == layer && i < out.count(); ++i) {
        BFloat16& x = out.as<BFloat16>()[i];
        x = from_float<BFloat16>(2 * to_float(x));
      }
    };
    return ops;
  }

  const std::string a_ = temp_path("diff_a.trace");
  const std::string b_ = temp_path("diff_b.trace");
  const std::string both_ = "diff " + a_ + " " + b_;
};

TEST_F(Diff, OfTheSameRunIsNothing) {
  write_trace(b_, serve_with(cpu_ops()));
  const Outcome outcome = call_lockstep(both_);
  EXPECT_EQ(outcome.status, 0) << outcome.out;
  EXPECT_EQ(outcome.err, "");
}

TEST_F(Diff, NamesTheFirstPlaceThatNoiseDoesNotExplain) {
  write_trace(b_, serve_with(wrong_in(3)));
  const std::string file = temp_path("diff.json");
  const Outcome outcome = call_lockstep(both_ + " --format json --json " + file);
  EXPECT_EQ(outcome.status, 1) << outcome.out;
  const auto result = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(result["verdict"], "different");
  for (const char* first : {"first_bits", "first_kind"}) {
    EXPECT_EQ(result[first]["point"], "mlp.act") << first;
    EXPECT_EQ(result[first]["layer"], 3) << first;
  }
  std::ifstream kept(file);
  EXPECT_EQ(nlohmann::json::parse(kept), result);
  std::filesystem::remove(file);
}

TEST_F(Diff, LooksWhereItIsTold) {
  write_trace(b_, serve_with(wrong_in(3)));
  const std::string in_layers = both_ + " --points 'attn.*,mlp.*' --layers ";
  EXPECT_EQ(call_lockstep(in_layers + "0-2").status, 0);
  EXPECT_EQ(call_lockstep(in_layers + "3").status, 1);
}

TEST_F(Diff, RefusesWhatItCannotCompare) {
  EXPECT_NE(trouble_of(both_).find(b_), std::string::npos);
  EXPECT_NE(trouble_of("diff " + a_).find("B is required"), std::string::npos);
}

TEST_F(Diff, OfNothingIsTrouble) {
  write_trace(b_, serve_with(cpu_ops()));
  EXPECT_EQ(call_lockstep(both_ + " --requests 7").status, 2);
  EXPECT_NE(trouble_of(both_ + " --layers 77").find("layers are 0..5"), std::string::npos);
}

TEST_F(Diff, WithACheckpointSaysWhichOfTheTwoIsWrong) {
  if (!std::filesystem::exists(built_path("liblockstep_reference.so")))
    GTEST_SKIP() << "this build has no reference (LOCKSTEP_TORCH=OFF)";
  write_trace(b_, serve_with(wrong_in(3)));
  const Outcome outcome =
      call_lockstep(both_ + " --format json --model " + data_path("bard-qwen3"));
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  const auto judged = nlohmann::json::parse(outcome.out)["judged"];
  ASSERT_EQ(judged.size(), 2u);
  EXPECT_EQ(judged[0]["verdict"], "clean") << judged;
  EXPECT_EQ(judged[1]["verdict"], "diverged") << judged;
  EXPECT_TRUE(judged[1]["story"].get<std::string>().starts_with("layer 3 mlp.act")) << judged;
  EXPECT_EQ(judged[1]["first"]["point"], "mlp.act");
  const std::string story = nlohmann::json::parse(outcome.out)["story"];
  EXPECT_TRUE(story.starts_with(b_ + " introduces an error, and " + a_ + " does not")) << story;
}

TEST_F(Diff, TokensOfOneRunAreForcedOnAnother) {
  std::filesystem::remove_all(a_);
  const std::string generate =
      "generate --format json --model " + data_path("bard-qwen3") + " --max-new 3 --trace ";
  ASSERT_EQ(call_lockstep(generate + a_ + " --tokens 5,6,7 --keep full").status, 0);
  const std::string forced = generate + b_ + " --force-from " + a_ + " --tokens ";
  EXPECT_NE(trouble_of(forced + "5,6").find("has request 0 with another prompt (3 tokens, here 2)"),
            std::string::npos);
  EXPECT_NE(trouble_of(forced + "5,6,7 --force 1").find("excludes --force"), std::string::npos);
  ASSERT_EQ(call_lockstep(forced + "5,6,7 --keep full").status, 0);
  const Outcome outcome = call_lockstep(both_);
  EXPECT_EQ(outcome.status, 0) << outcome.out;
  EXPECT_TRUE(outcome.out.starts_with("A " + a_)) << outcome.out;
  EXPECT_NE(outcome.out.find("\nB " + b_ + "  the same"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace lockstep
