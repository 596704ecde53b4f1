// What the judge makes of experts that were chosen otherwise than by the largest logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "src/judge/verdict.h"
#include "src/session/judged_trace.h"
#include "tests/judged.h"
#include "tests/weights/changed_checkpoint.h"

namespace lockstep {
namespace {

class Experts : public testing::Test {
 protected:
  // Serves a prompt with `ops`; `change` may spoil what was shown before it is judged.
  Result judge(
      Ops ops, void (*change)(Pass&) = [](Pass&) {}) {
    const Request request{.prompt = some_tokens(20, checkpoint_.config().vocab), .max_new = 2};
    Served served = serve(checkpoint_, {.dtype = DType::bf16}, {request}, std::move(ops));
    const auto oracle = open_reference().oracle(checkpoint_, {.dtype = DType::bf16});
    const Manifest manifest{.graph = graph_of(checkpoint_.config()), .dtype = DType::bf16};
    Judge judge(manifest, *oracle, nullptr, nullptr, {});
    for (Pass& pass : served.passes) {
      change(pass);
      judge.judge(pass);
    }
    return judge.finish({}, true);
  }
  // The ops with each row of experts changed at layer 1, after they were chosen among `count`.
  static Ops changed(void (*change)(int32_t* row, int64_t k, int64_t count)) {
    Ops ops = cpu_ops();
    ops.top_k = [change](const OpContext& context, TensorView out, TensorView logits) {
      top_k(context, out, logits);
      for (int64_t t = 0; context.layer == 1 && t < out.rows(); ++t)
        change(out.as<int32_t>() + t * out.shape[1], out.shape[1], logits.shape[1]);
    };
    return ops;
  }

  Checkpoint checkpoint_ = Checkpoint::open(data_path("tiny/qwen3-moe"));
};

TEST_F(Experts, InAnotherOrderAreTheSame) {
  const Result result =
      judge(changed([](int32_t* row, int64_t k, int64_t) { std::reverse(row, row + k); }));
  EXPECT_EQ(result.verdict, RunVerdict::clean) << result.story;
  EXPECT_EQ(result.judged, result.expected);
}

TEST_F(Experts, ThatAreNotThoseOfTheLargestLogitsAreNamed) {
  const Result result = judge(changed([](int32_t* row, int64_t k, int64_t count) {
    for (int32_t e = 0; e < count; ++e)
      if (std::find(row, row + k, e) == row + k) row[k - 1] = e;
  }));
  ASSERT_TRUE(result.first) << result.story;
  EXPECT_EQ(result.first->node.place.point->name, "mlp.experts");
  EXPECT_EQ(result.first->node.place.layer, 1);
  EXPECT_EQ(result.first->statistic, StatisticKind::bits);
  EXPECT_EQ(result.judged, result.expected) << "what reads them is judged by what it was given";
}

TEST_F(Experts, ChosenTwiceAreNamed) {
  const Result result =
      judge(changed([](int32_t* row, int64_t k, int64_t) { row[k - 1] = row[0]; }));
  ASSERT_TRUE(result.first) << result.story;
  EXPECT_EQ(result.first->node.place.point->name, "mlp.experts");
}

TEST_F(Experts, ThatDoNotExistAreNamedAndWhatReadsThemIsNotJudged) {
  const Result result = judge(cpu_ops(), [](Pass& pass) {
    for (RecordedTensor& tensor : pass.tensors)
      if (*tensor.point == point("mlp.experts") && tensor.layer == 1)
        tensor.data.as<int32_t>()[1] = 8;
  });
  ASSERT_TRUE(result.first) << result.story;
  EXPECT_EQ(result.first->node.place.point->name, "mlp.experts");
  EXPECT_EQ(result.first->node.place.layer, 1);
  // mlp.weights, three products and their sum, of the two passes.
  EXPECT_EQ(result.expected - result.judged, 5 * 2);
}

TEST_F(Experts, AreJudgedFromATraceAsTheyWereLive) {
  const std::string trace = temp_path("experts.h5");
  const JudgedRun run{.checkpoint = checkpoint_,
                      .reference = open_reference(),
                      .engine = {.dtype = DType::bf16},
                      .requests = {{.prompt = some_tokens(9, 320), .max_new = 2}},
                      .faults = {parse_fault("moe-expert-order@layer=1")},
                      .trace = trace,
                      .level = TraceLevel::full};
  const Result live = judged(run), saved = judge_trace(trace, checkpoint_, {});
  ASSERT_TRUE(live.first && saved.first);
  EXPECT_EQ(saved.first->node.place, live.first->node.place);
  EXPECT_EQ(saved.first->budgets, live.first->budgets);
  EXPECT_EQ(saved.judged, live.judged);
  EXPECT_EQ(saved.expected, live.expected);
}

TEST_F(Experts, KeptInAnotherDtypeAreStructural) {
  const Result result = judge(cpu_ops(), [](Pass& pass) {
    for (RecordedTensor& tensor : pass.tensors)
      if (*tensor.point == point("mlp.experts") && tensor.layer == 1) tensor.dtype = DType::i64;
  });
  ASSERT_TRUE(result.first) << result.story;
  EXPECT_EQ(result.first->node.place.point->name, "mlp.experts");
  EXPECT_EQ(result.first->verdict, Verdict::structural);
}

TEST_F(Experts, FewerThanTheModelTakesAreStructuralAndWhatReadsThemIsNotJudged) {
  const Result result = judge(cpu_ops(), [](Pass& pass) {
    for (RecordedTensor& tensor : pass.tensors) {
      if (!(*tensor.point == point("mlp.experts") && tensor.layer == 1)) continue;
      const int64_t rows = tensor.shape[0], k = tensor.shape[1];
      Tensor first({rows, 1}, DType::i32);
      for (int64_t t = 0; t < rows; ++t)
        first.view().as<int32_t>()[t] = tensor.data.as<int32_t>()[t * k];
      tensor.shape = first.view().shape;
      tensor.data = std::move(first);
    }
  });
  ASSERT_TRUE(result.first) << result.story;
  EXPECT_EQ(result.first->node.place.point->name, "mlp.experts");
  EXPECT_EQ(result.first->verdict, Verdict::structural);
  EXPECT_NE(result.story.find("2 experts a token were wanted, found 1"), std::string::npos)
      << result.story;
  // The choice itself was compared with nothing either.
  EXPECT_EQ(result.expected - result.judged, 6 * 2);
}

// The middle one of three layers has one MLP, with weights that the embedding lends.
Checkpoint mixed() {
  const auto change = [](StoredWeights& weights) {
    const std::string at = "model.layers.1.mlp.";
    std::erase_if(weights, [&](const auto& one) { return one.first.starts_with(at); });
    const Stored embed = weights.at("model.embed_tokens.weight");
    const size_t row = 64 * 2;  // bytes
    weights[at + "gate_proj.weight"] = {"BF16", {160, 64}, embed.bytes.substr(0, 160 * row)};
    weights[at + "up_proj.weight"] = {"BF16", {160, 64}, embed.bytes.substr(160 * row, 160 * row)};
    weights[at + "down_proj.weight"] = {"BF16", {64, 160}, embed.bytes.substr(80 * row, 160 * row)};
  };
  return open_changed("qwen3-moe", change, {{"mlp_only_layers", {1}}});
}

TEST(MixedLayers, AreJudgedEachByItsOps) {
  const Checkpoint checkpoint = mixed();
  JudgedRun run{.checkpoint = checkpoint,
                .reference = open_reference(),
                .engine = {.dtype = DType::bf16},
                .requests = {{.prompt = some_tokens(17, 320), .max_new = 3},
                             {.prompt = some_tokens(5, 320, 1), .max_new = 3}}};
  const Result clean = judged(run);
  EXPECT_EQ(clean.verdict, RunVerdict::clean) << clean.story;
  EXPECT_EQ(clean.judged, clean.expected);

  for (const auto& [fault, point] : {std::pair("gelu-for-silu@layer=1", "mlp.act"),
                                     {"moe-expert-order@layer=2", "mlp.combine"}}) {
    run.faults = {parse_fault(fault)};
    const Result result = judged(run);
    ASSERT_TRUE(result.first) << result.story;
    EXPECT_EQ(result.first->node.place.point->name, point);
    EXPECT_EQ(result.first->node.place.layer, fault[std::strlen(fault) - 1] - '0');
  }
}

}  // namespace
}  // namespace lockstep
