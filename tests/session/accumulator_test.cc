// Linear ops that round their operands to tf32: found in a run that declares fp32, due in one that
// declares tf32, and no cover for a bug there.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <span>

#include "kernels/base/check.h"
#include "src/session/options.h"
#include "tests/judged.h"
#include "tests/whole.h"

namespace lockstep {
namespace {

// Runs of wrong ops are of a small model: of each op that is wrong other contracts are tried.
constexpr const char* kSmall = "tiny/qwen3-default";

// The fp32 tensor with the last `bits` of every element's significand rounded away, to nearest.
Tensor rounded(const TensorView& x, int bits) {
  Tensor copy = copy_on(Device::cpu, x);
  const uint32_t half = 1u << (bits - 1);
  for (float& one : std::span(copy.as<float>(), static_cast<size_t>(x.count())))
    one = std::bit_cast<float>((std::bit_cast<uint32_t>(one) + half) & ~(2 * half - 1));
  return copy;
}

// Every linear op on operands that lost `bits` of their 24: 13 is tf32.
Ops operands_without(int bits) {
  Ops ops = cpu_ops();
  ops.matmul = [bits](const OpContext& context, TensorView out, TensorView x, WeightView weight,
                      TensorView bias) {
    matmul(context, out, rounded(x, bits), rounded(weight.codes, bits).view(), bias);
  };
  ops.expert_matmul = [bits](const OpContext& context, TensorView out, TensorView x,
                             TensorView index, const std::vector<TensorView>& weights) {
    std::vector<Tensor> kept;
    std::vector<TensorView> views;
    for (const TensorView& weight : weights)
      views.push_back(kept.emplace_back(rounded(weight, bits)));
    expert_matmul(context, out, rounded(x, bits), index, views);
  };
  return ops;
}

struct Declared {
  std::string by_trace, asked;
};

Result judged_with(const std::string& model, const Ops& ops, const Declared& declared) {
  const Checkpoint checkpoint = Checkpoint::open(data_path(model));
  const int64_t vocab = checkpoint.config().vocab;
  JudgedRun run{.checkpoint = checkpoint, .reference = open_reference(), .causes = whole()};
  run.engine.dtype = DType::f32;
  run.ops = ops;
  // One token alone, one many times, and rows that all differ.
  run.requests = {{.prompt = {7}, .max_new = 3},
                  {.prompt = std::vector<int32_t>(20, 9), .max_new = 2},
                  {.prompt = some_tokens(40, vocab), .max_new = 3}};
  if (!declared.by_trace.empty()) run.provenance["accumulator"] = declared.by_trace;
  run.judge.accumulator = accumulator_of(declared.asked);
  return judged(run);
}

bool notes_tf32(const Result& result) {
  return std::ranges::any_of(result.notes, [](const std::string& note) {
    return note.find("round their operands to tf32") != std::string::npos;
  });
}

TEST(Accumulator, OfTf32IsAFindingWhereFp32IsDeclared) {
  for (const Declared& declared : {Declared{}, Declared{"fp32", ""}, Declared{"tf32", "fp32"}}) {
    const Result result = judged_with(kSmall, operands_without(13), declared);
    ASSERT_TRUE(result.first) << result.story;
    EXPECT_EQ(result.first->node.place.point->name, "attn.q");
    EXPECT_EQ(result.first->node.place.layer, 0);
    EXPECT_FALSE(notes_tf32(result));
  }
}

TEST(Accumulator, OfTf32IsCleanWhereItIsDeclared) {
  for (const char* model : {"bard-qwen3", "bard-qwen2.5", "tiny/qwen3-moe"}) {
    const Result result = judged_with(model, operands_without(13), {"tf32", ""});
    EXPECT_EQ(result.verdict, RunVerdict::clean) << model << ": " << result.story;
    EXPECT_EQ(result.judged, result.expected);
    EXPECT_TRUE(notes_tf32(result)) << "it is not said what was allowed";
    EXPECT_EQ(judged_with(model, cpu_ops(), {"", "tf32"}).verdict, RunVerdict::clean)
        << "fp32 is no worse";
  }
}

TEST(Accumulator, OfTf32DoesNotCoverLess) {
  // Operands of 9 bits, a quarter of tf32's precision.
  const Result coarse = judged_with(kSmall, operands_without(15), {"tf32", ""});
  ASSERT_TRUE(coarse.first) << coarse.story;
  EXPECT_EQ(coarse.first->node.place.point->name, "attn.q");
  // Other ops are held to fp32.
  Ops ops = operands_without(13);
  ops.silu_mul = [](const OpContext& context, TensorView out, TensorView gate, TensorView up) {
    silu_mul(context, out, rounded(gate, 13), up);
  };
  const Result elsewhere = judged_with(kSmall, ops, {"tf32", ""});
  ASSERT_TRUE(elsewhere.first) << elsewhere.story;
  EXPECT_EQ(elsewhere.first->node.place.point->name, "mlp.act");
  EXPECT_EQ(elsewhere.first->node.place.layer, 0);
}

TEST(Accumulator, OfAnotherNameIsRefused) {
  EXPECT_THROW(judged_with("bard-qwen3", cpu_ops(), {"fp8", ""}), Error);
}

}  // namespace
}  // namespace lockstep
