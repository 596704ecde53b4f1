// One set of requests served in every way: alike when the engine is right, and a bug that shows in
// some ways only is named with the pair of them.
#include "src/session/modes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "tests/device.h"
#include "tests/fixtures.h"
#include "tests/lockstep_binary.h"

namespace lockstep {
namespace {

const Checkpoint& checkpoint_of(const std::string& name) {
  static std::map<std::string, Checkpoint> open;
  return open.try_emplace(name, Checkpoint::open(data_path(name))).first->second;
}

std::vector<Request> requests_for(const Checkpoint& checkpoint) {
  const int64_t vocab = checkpoint.config().vocab;
  return {{.prompt = some_tokens(19, vocab, 1), .max_new = 5},
          {.prompt = some_tokens(37, vocab, 2), .max_new = 3},
          {.prompt = some_tokens(2, vocab, 3), .max_new = 1}};
}

ModesRun run_of(const Checkpoint& checkpoint, DType dtype, const std::string& modes = "all") {
  return {.checkpoint = checkpoint,
          .engine = {.device = TestDevice::device(), .dtype = dtype, .page_order_seed = 5},
          .requests = requests_for(checkpoint),
          .modes = modes_from(modes),
          .ops = ops_of(TestDevice::device())};
}

// For ops of the test's own, which are the CPU's.
ModesRun cpu_run_of(const Checkpoint& checkpoint, const std::string& modes) {
  ModesRun run = run_of(checkpoint, DType::bf16, modes);
  run.engine.device = Device::cpu;
  run.ops = cpu_ops();
  return run;
}

void expect_clean(const Result& result, const std::string& what) {
  EXPECT_EQ(result.verdict, RunVerdict::clean) << what << ": " << result.story;
  EXPECT_EQ(result.judged, result.expected) << what;
  EXPECT_GT(result.judged, 1000) << what;
  EXPECT_GT(result.counts[Verdict::bitwise], result.judged / 2) << what;
}

TEST(Modes, AllAgreeOnAnEngineThatIsRight) {
  for (const char* model : {"bard-qwen3", "bard-qwen2.5"})
    for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const Result result = run_modes(run_of(checkpoint_of(model), dtype));
      expect_clean(result, std::string(model) + " " + std::string(name_of(dtype)));
      EXPECT_EQ(result.notes.size(), modes().size());
    }
}

TEST(Modes, AgreeOnEveryVariantOfTheModel) {
  for (const char* tiny :
       {"qwen2-mha", "qwen2-sliding", "qwen3-bias-mqa", "qwen3-yarn", "qwen3-moe"})
    expect_clean(run_modes(run_of(checkpoint_of(std::string("tiny/") + tiny), DType::bf16)), tiny);
}

TEST(Modes, ThatEndPassesElsewhereAreLeftOutWhereTablesDependOnTheLength) {
  const Checkpoint& dynamic = checkpoint_of("tiny/qwen3-dynamic");
  const Result result = run_modes(run_of(dynamic, DType::bf16));
  expect_clean(result, "dynamic");
  const auto out = [](const std::string& note) { return note.starts_with("chunk-7 was left out"); };
  EXPECT_TRUE(std::ranges::any_of(result.notes, out));
  EXPECT_NE(
      error_of([&] { run_modes(run_of(dynamic, DType::bf16, "chunk-7,prefix")); }).find("no mode"),
      std::string::npos);
}

// Adds a little to one element where `when` says so.
template <typename When>
Ops with_wrong_matmul(int layer, const Point& at, float by, When when) {
  Ops ops = cpu_ops();
  ops.matmul = [inner = ops.matmul, layer, &at, by, when](const OpContext& context, TensorView out,
                                                          TensorView x, WeightView weight,
                                                          TensorView bias) {
    inner(context, out, x, weight, bias);
    if (context.layer != layer || context.point != at.name || !when(out.rows())) return;
    BFloat16& last = out.as<BFloat16>()[out.count() - 1];
    last = from_float<BFloat16>(static_cast<float>(value_at(out, out.count() - 1)) + by);
  };
  return ops;
}

TEST(Modes, AProductThatDependsOnTheBatchIsNamedWithThePair) {
  ModesRun run = cpu_run_of(checkpoint_of("bard-qwen3"), "all");
  run.ops = with_wrong_matmul(3, point("mlp.up"), 0.5f, [](int64_t rows) { return rows > 1; });
  const Result result = run_modes(run);
  EXPECT_EQ(exit_status(result), 1);
  ASSERT_TRUE(result.first);
  EXPECT_EQ(result.first->node.place, (Place{&point("mlp.up"), 3})) << result.story;
  for (const Finding& f : result.findings)
    EXPECT_EQ(f.node.place, (Place{&point("mlp.up"), 3})) << "one bug does not taint what reads it";
  const auto pair = [](const Finding& f) {
    return f.rule.find("whole (its request") == 0 && f.rule.find("and tokens the other") > 0;
  };
  EXPECT_TRUE(std::ranges::any_of(result.findings, pair)) << result.story;
  run.modes = modes_from("pages,page-size,threads,poison");
  expect_clean(run_modes(run), "the same bug in the same batches");
}

// Whatever joins a batch whose longest request decides changes nothing; its shortest one alone
// does.
TEST(Modes, AnAttentionThatSplitsByTheLongestOfTheBatchIsNamed) {
  ModesRun run = cpu_run_of(checkpoint_of("bard-qwen3"), "batch-mates");
  run.ops.paged_attention = [inner = run.ops.paged_attention](
                                const OpContext& context, TensorView out, TensorView q,
                                KvCache cache, AttentionBatch batch, float scale, int64_t window) {
    inner(context, out, q, cache, batch, scale, window);
    const std::span lengths(batch.context_length.as<const int32_t>(),
                            static_cast<size_t>(batch.context_length.count()));
    if (std::ranges::max(lengths) <= 24) return;
    for (int64_t row = 0; row < out.rows(); ++row)
      out.as<uint16_t>()[row * out.row_size() + 3] ^= 1;
  };
  const Result result = run_modes(run);
  EXPECT_EQ(exit_status(result), 1) << result.story;
  ASSERT_TRUE(result.first) << result.story;
  for (const Finding& f : result.findings)
    EXPECT_EQ(f.node.place.point, &point("attn.out")) << result.story;
}

TEST(Modes, ANormThatIsWrongForLaterRowsIsNamed) {
  ModesRun run = cpu_run_of(checkpoint_of("bard-qwen2.5"), "tokens");
  run.ops.rms_norm = [inner = run.ops.rms_norm](const OpContext& context, TensorView out,
                                                TensorView x, TensorView weight, float eps) {
    inner(context, out, x, weight, eps);
    if (context.layer != 2 || context.point != "attn.norm" || out.rows() < 2) return;
    auto* bits = out.as<uint16_t>();
    bits[out.row_size() + 7] ^= 1;  // one ulp of one element of row 1
  };
  const Result result = run_modes(run);
  ASSERT_TRUE(result.first) << result.story;
  EXPECT_EQ(result.first->node.place, (Place{&point("attn.norm"), 2}));
  EXPECT_EQ(result.first->position, 1);
  EXPECT_EQ(result.first->index, (std::vector<int64_t>{1, 7}));
  EXPECT_EQ(result.first->statistic, StatisticKind::bits);
}

TEST(Modes, SlotsThatAreReadBeforeTheyAreWrittenShowByTheirPoison) {
  ModesRun run = run_of(checkpoint_of("bard-qwen3"), DType::bf16, "poison");
  run.faults = {parse_fault("last-page-tail-unmasked@layer=4")};
  const Result result = run_modes(run);
  ASSERT_TRUE(result.first) << result.story;
  EXPECT_EQ(result.first->node.place, (Place{&point("attn.out"), 4}));
  EXPECT_NE(result.first->rule.find("and poison the other"), std::string::npos);
}

TEST(Modes, RowsThatNobodyWroteAreKnownByWhatFreeSlotsHold) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
    for (const auto& [mode, holds] : {std::pair("poison", "60000"), std::pair("pages", "NaN")}) {
      ModesRun run = run_of(checkpoint_of("tiny/qwen3-default"), dtype, mode);
      run.faults = {parse_fault("new-token-never-cached@layer=1")};
      const Result result = run_modes(run);
      ASSERT_TRUE(result.first) << result.story;
      EXPECT_EQ(result.first->node.place, (Place{&point("attn.kv"), 1}));
      const std::string rule =
          "; nothing was written to the cache for 1 of 20 rows, position 19 the first: they hold "
          "the " +
          std::string(holds) + " of free slots";
      EXPECT_TRUE(result.first->rule.ends_with(rule)) << result.first->rule;
    }
}

TEST(Modes, AWrongPageIsSeenByTheAuditOfTheModeToo) {
  ModesRun run = run_of(checkpoint_of("bard-qwen3"), DType::bf16, "pages");
  run.faults = {parse_fault("wrong-page@layer=1")};
  const Result result = run_modes(run);
  ASSERT_TRUE(result.first) << result.story;
  EXPECT_EQ(result.first->node.place, (Place{&point("attn.kv"), 1}));
  const auto audited = [](const Finding& f) {
    return f.rule.starts_with("in whole: layer 1, request 1, position 0 reads page") &&
           f.rule.find("written by request 0 position 0 in pass 0") != std::string::npos;
  };
  EXPECT_TRUE(std::ranges::any_of(result.findings, audited));
}

const Mode& mode_of(const std::string& name) { return *modes_from(name)[0]; }

// Passes of the request that was asked for.
std::vector<Pass> passes_with(const Mode::Serving& serving, int32_t request) {
  const Served served = serve(checkpoint_of("bard-qwen3"), serving.engine, serving.requests);
  std::vector<Pass> with;
  for (const Pass& pass : served.passes)
    if (std::ranges::any_of(pass.info.rows,
                            [request](const PassRow& r) { return r.row.request == request; }))
      with.push_back(pass);
  return with;
}

// The modes do what they say: else they would agree for nothing.
TEST(Modes, ReallyPreempt) {
  Mode::Base base{{.dtype = DType::bf16}, requests_for(checkpoint_of("bard-qwen3"))};
  base.requests.push_back({.prompt = {5, 6, 7, 8}, .max_new = 1});
  for (const Mode::Serving& serving : mode_of("recompute").servings(base)) {
    const std::vector<Pass> passes = passes_with(serving, 1);
    int starts = 0;
    for (const Pass& pass : passes)
      for (const PassRow& r : pass.info.rows) starts += r.row.request == 1 && r.row.position == 0;
    EXPECT_GE(starts, 2) << "a prompt of " << serving.requests[1].prompt.size();
  }
  for (const Mode::Serving& serving : mode_of("swap").servings(base)) {
    const std::vector<Pass> passes = passes_with(serving, 1);
    bool away = false;
    for (size_t i = 1; i < passes.size(); ++i)
      away = away || passes[i].info.pass > passes[i - 1].info.pass + 1;
    EXPECT_TRUE(away) << "a prompt of " << serving.requests[1].prompt.size();
  }
}

TEST(Modes, ReallyHitThePrefixCache) {
  const Mode::Base base{{.dtype = DType::bf16, .page_size = 8},
                        {requests_for(checkpoint_of("bard-qwen3"))[1]}};
  const Mode::Serving serving = mode_of("prefix").servings(base)[0];
  const std::vector<Pass> second = passes_with(serving, 1);
  ASSERT_EQ(second[0].info.inherited.size(), 1u);
  EXPECT_EQ(second[0].info.inherited[0].tokens.size(), 32u);
}

TEST(RunWithModes, TellsByItsExitStatusAndNeedsNoReference) {
  const std::string run = "run --model " + data_path("bard-qwen3") +
                          " --tokens 5,6,7,8,9,10,11,12,13,14,15,16,17 --max-new 3 --modes ";
  const Outcome clean = call_lockstep(run + "all --format json");
  EXPECT_EQ(clean.status, 0) << clean.err;
  EXPECT_NE(clean.out.find("\"verdict\": \"clean\""), std::string::npos) << clean.out;
  EXPECT_NE(clean.out.find("whether they are right was not judged"), std::string::npos);
  EXPECT_EQ(clean.out.find("No bug"), std::string::npos) << "nothing was held to what is right";
  const Outcome wrong = call_lockstep(run + "poison --fault last-page-tail-unmasked@layer=1");
  EXPECT_EQ(wrong.status, 1) << wrong.err;
  EXPECT_NE(wrong.out.find("diverged: layer 1 attn.out"), std::string::npos) << wrong.out;
  EXPECT_NE(trouble_of(run + "swapp").find("did you mean \"swap\""), std::string::npos);
  EXPECT_NE(trouble_of(run + "all --trace x.trace").find("excludes"), std::string::npos);
}

TEST(ModesFrom, TakesAllOrNames) {
  EXPECT_EQ(modes_from("all").size(), modes().size());
  EXPECT_EQ(modes_from("swap,chunk-7")[1]->name, "chunk-7");
  EXPECT_NE(error_of([] { modes_from("chunk-8"); }).find("did you mean \"chunk-"),
            std::string::npos);
  EXPECT_THROW(modes_from(""), Error);
  EXPECT_THROW(modes_from("swap,"), Error);
}

}  // namespace
}  // namespace lockstep
