// Clean runs must come out clean, whatever serves them; and what must fail, fails.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/judge/verdict.h"
#include "tests/judged.h"
#include "tests/places.h"
#include "tests/weights/changed_checkpoint.h"
#include "tests/whole.h"

namespace lockstep {
namespace {

void expect_clean(const Result& result, const std::string& what) {
  EXPECT_EQ(result.verdict, RunVerdict::clean) << what << ": " << result.story;
  EXPECT_EQ(exit_status(result), 0) << what;
  EXPECT_GT(result.judged, 0) << what;
  EXPECT_EQ(result.judged, result.expected) << what;
  if (!result.logits) return;
  const LogitsSummary& logits = *result.logits;
  EXPECT_EQ(logits.argmax_equal + logits.explained_flips, logits.compared) << what;
}

struct Case {
  std::string model;
  DType dtype;
  int64_t page_size;
};

class CleanRun : public testing::TestWithParam<Case> {
 protected:
  Checkpoint checkpoint_ = Checkpoint::open(data_path(GetParam().model));

  Request request(int64_t tokens) {
    return {.prompt =
                some_tokens(tokens, checkpoint_.config().vocab, 77 + static_cast<uint64_t>(tokens)),
            .max_new = 3};
  }
  Result run(std::vector<Request> requests) {
    return judged({.checkpoint = checkpoint_,
                   .reference = open_reference(),
                   .engine = {.dtype = GetParam().dtype,
                              .page_size = GetParam().page_size,
                              .page_order_seed = 9},
                   .requests = std::move(requests)});
  }
};

TEST_P(CleanRun, OfOneRequestAndOfFive) {
  std::vector<Request> all;
  for (int64_t tokens : {1, 15, 16, 17, 120}) {
    all.push_back(request(tokens));
    if (GetParam().page_size == 16)
      expect_clean(run({all.back()}), std::to_string(tokens) + " tokens");
  }
  expect_clean(run(all), "five requests");
}

std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.model + "_" + std::string(name_of(info.param.dtype)) +
                     "_pages_of_" + std::to_string(info.param.page_size);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

// A third of the combinations: each model in each dtype, with one size of a page each.
std::vector<Case> all_cases() {
  constexpr DType kDtypes[] = {DType::f32, DType::bf16, DType::f16};
  constexpr int64_t kPageSizes[] = {1, 16, 64};
  std::vector<Case> cases;
  for (size_t model = 0; model < 2; ++model)
    for (size_t dtype = 0; dtype < 3; ++dtype)
      for (size_t size = 0; size < 3; ++size)
        if (whole() || size == (dtype + model) % 3)
          cases.push_back(
              {model == 0 ? "bard-qwen3" : "bard-qwen2.5", kDtypes[dtype], kPageSizes[size]});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Matrix, CleanRun, testing::ValuesIn(all_cases()), name_of_case);

class TinyCleanRun : public testing::TestWithParam<std::string> {};

TEST_P(TinyCleanRun, InEveryDtype) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/" + GetParam()));
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    expect_clean(
        judged(
            {.checkpoint = checkpoint,
             .reference = open_reference(),
             .engine = {.dtype = dtype, .page_size = 4, .page_order_seed = 2, .chunk = 7},
             .requests = {{.prompt = some_tokens(41, checkpoint.config().vocab), .max_new = 4},
                          {.prompt = some_tokens(9, checkpoint.config().vocab, 3), .max_new = 4}}}),
        std::string(name_of(dtype)));
}

INSTANTIATE_TEST_SUITE_P(Variants, TinyCleanRun,
                         testing::Values("qwen2-default", "qwen2-mha", "qwen2-sliding",
                                         "qwen3-bias-mqa", "qwen3-default", "qwen3-dynamic",
                                         "qwen3-linear", "qwen3-llama3", "qwen3-moe",
                                         "qwen3-untied-sharded", "qwen3-yarn"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// Queries of zeros: every key has the same score, and attention makes means of a few stored
// numbers. Many lie on the border of two, where an error of a last bit decides which is stored.
class EqualScores : public testing::Test {
 protected:
  Result run(DType dtype, const std::optional<Ops>& ops = {}) {
    std::vector<Request> requests;
    for (uint64_t i = 0; i < 96; ++i)
      requests.push_back(
          {.prompt = some_tokens(3, checkpoint_.config().vocab, 40 + i), .max_new = 1});
    return judged({.checkpoint = checkpoint_,
                   .reference = open_reference(),
                   .engine = {.dtype = dtype},
                   .ops = ops,
                   .requests = requests,
                   .causes = false});
  }

 private:
  Checkpoint checkpoint_ = open_changed("qwen3-default", [](StoredWeights& weights) {
    for (auto& [name, stored] : weights)
      if (name.ends_with("q_norm.weight")) std::ranges::fill(stored.bytes, '\0');
  });
};

TEST_F(EqualScores, AreRightWhicheverWayABorderIsRounded) {
  for (const DType dtype : {DType::bf16, DType::f16})
    expect_clean(run(dtype), std::string(name_of(dtype)));
}

TEST_F(EqualScores, OfAHeadThatIsOneSpacingOffAreWrong) {
  if (TestDevice::device() != Device::cpu) GTEST_SKIP() << "the wrong op is one of the CPU";
  Ops ops = cpu_ops();
  ops.paged_attention = [](const OpContext& at, TensorView out, auto&&... inputs) {
    paged_attention(at, out, inputs...);
    const int64_t heads = out.shape[1], dim = out.shape[2];
    for (int64_t i = 0; i < out.rows(); ++i)
      for (int64_t d = 0; d < dim; ++d) ++out.as<BFloat16>()[(i * heads + 1) * dim + d].bits;
  };
  const Result result = run(DType::bf16, ops);
  ASSERT_TRUE(result.first) << result.story;
  EXPECT_EQ(result.first->node.place.point->name, "attn.out");
  EXPECT_EQ(result.first->node.place.layer, 0);
}

// Limits learnt from some runs hold for others, and are tighter than theory.
class Calibrated : public testing::TestWithParam<DType> {};

TEST_P(Calibrated, OtherRunsAreClean) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  const auto run = [&](std::vector<int64_t> lengths, uint64_t seed, const JudgeOptions& options) {
    std::vector<Request> requests;
    for (const int64_t length : lengths)
      requests.push_back(
          {.prompt = some_tokens(length, checkpoint.config().vocab, ++seed), .max_new = 3});
    return judged({.checkpoint = checkpoint,
                   .reference = open_reference(),
                   .engine = {.dtype = GetParam()},
                   .requests = requests,
                   .judge = options});
  };
  Limits limits;
  expect_clean(run({60, 17, 1, 130}, 10, {.learn = &limits}), "learnt from");
  expect_clean(run({33, 90, 2, 16}, 20, {.learn = &limits}), "learnt from");
  const OpLimits norm = limits.of(OpKind::norm, GetParam());
  EXPECT_LT(norm.gain, 12 * 0x1p-23);  // which is theory's, of 192 squares
  if (GetParam() == DType::f32) {
    EXPECT_LT(norm.inner, 0.5);
  }
  expect_clean(run({40, 1, 77, 15}, 30, {.limits = limits}), "held to them");
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Calibrated,
                         testing::ValuesIn(whole()
                                               ? std::vector{DType::f32, DType::bf16, DType::f16}
                                               : std::vector{DType::f32, DType::bf16}),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// tools/cpu-limits.json, learnt from other prompts on the AVX-512, AVX2 and generic kernels.
JudgedRun run_under_shipped_limits(const Checkpoint& checkpoint, DType dtype) {
  JudgedRun run{.checkpoint = checkpoint,
                .reference = open_reference(),
                .engine = {.dtype = dtype, .page_size = 8, .page_order_seed = 2, .chunk = 16}};
  for (const int64_t length : {47, 9, 1})
    run.requests.push_back(
        {.prompt = some_tokens(length, checkpoint.config().vocab, 900), .max_new = 3});
  run.judge.limits = Limits::read(source_path("tools/cpu-limits.json"));
  return run;
}

class Shipped : public testing::TestWithParam<DType> {};

TEST_P(Shipped, LimitsAlarmNoCleanRun) {
  if (TestDevice::device() != Device::cpu) GTEST_SKIP() << "these are limits of the CPU's kernels";
  // Other models in one dtype each.
  const std::map<std::string, DType> others = {{"bard-qwen2.5", DType::bf16},
                                               {"tiny/qwen3-moe", DType::f16},
                                               {"tiny/qwen2-sliding", DType::f32}};
  for (const char* model : {"bard-qwen3", "bard-qwen2.5", "tiny/qwen3-moe", "tiny/qwen2-sliding"}) {
    if (!whole() && others.contains(model) && others.at(model) != GetParam()) continue;
    const Checkpoint checkpoint = Checkpoint::open(data_path(model));
    expect_clean(judged(run_under_shipped_limits(checkpoint, GetParam())), model);
  }
}

// Theory allows fp32 products many times what a good kernel is off: a bug that stays under it, and
// that limits are for.
TEST(ShippedLimits, SeeWhatTheoryAllows) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  const auto served = [&](bool shipped) {
    JudgedRun run = run_under_shipped_limits(checkpoint, DType::f32);
    if (!shipped) run.judge.limits = {};
    const auto oracle = open_reference().oracle(checkpoint, {.dtype = DType::f32});
    const Manifest manifest{.graph = graph_of(checkpoint.config()), .dtype = DType::f32};
    Judge judge(manifest, *oracle, nullptr, nullptr, run.judge);
    Ops ops = cpu_ops();
    ops.matmul = [](const OpContext& at, TensorView out, TensorView x, WeightView w,
                    TensorView bias) {
      matmul(at, out, x, w, bias);
      const std::span<float> row(out.as<float>(), static_cast<size_t>(out.row_size()));
      float& largest = *std::ranges::max_element(row, {}, [](float x) { return std::fabs(x); });
      if (at.point == "mlp.down" && at.layer == 2) largest *= 1 + 5e-6F;
    };
    for (const Pass& pass : serve(checkpoint, run.engine, run.requests, ops).passes)
      judge.judge(pass);
    return judge.finish({}, true);
  };
  EXPECT_EQ(served(false).verdict, RunVerdict::clean) << served(false).story;
  const Result result = served(true);
  ASSERT_TRUE(result.first) << result.story;
  EXPECT_EQ(result.first->node.place.point->name, "mlp.down");
  EXPECT_EQ(result.first->node.place.layer, 2);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Shipped, testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// The reference in the engine's place: passes as the engine would make them, computed by LibTorch.
std::vector<Pass> passes_of_reference(ReferenceModel& model, const std::vector<Request>& requests) {
  std::vector<Pass> passes;
  Recorder recorder({}, true, [&](Pass pass) { passes.push_back(std::move(pass)); });
  Probe probe(&recorder);
  std::vector<std::vector<int32_t>> tokens;
  for (const Request& r : requests) tokens.push_back(r.prompt);
  std::vector<size_t> done(requests.size(), 0);
  for (int32_t step = 0; step < 3; ++step) {
    PassInfo info{.pass = step};
    for (size_t r = 0; r < requests.size(); ++r) {
      for (size_t p = done[r]; p < tokens[r].size(); ++p)
        info.rows.push_back({{static_cast<int32_t>(r), static_cast<int32_t>(p)},
                             tokens[r][p],
                             static_cast<int64_t>(p),
                             step == 0 ? Phase::prefill : Phase::decode});
      done[r] = tokens[r].size();
      info.logit_rows.push_back(static_cast<int32_t>(info.rows.size()) - 1);
      info.pages.push_back({static_cast<int32_t>(r), {}});
    }
    model.run(info, probe);
    EXPECT_EQ(probe.failure(), "");
    const RecordedTensor* chosen = passes.back().find(point("token"), -1);
    EXPECT_NE(chosen, nullptr);
    if (chosen == nullptr) return passes;
    for (size_t r = 0; r < requests.size(); ++r) tokens[r].push_back(chosen->data.as<int32_t>()[r]);
  }
  return passes;
}

TEST(ReferenceInTheEnginesPlace, ComesOutClean) {
  for (const std::string name : {"bard-qwen3", "bard-qwen2.5"})
    for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      if (!whole() && (name == "bard-qwen3") != (dtype == DType::bf16)) continue;
      const Checkpoint checkpoint = Checkpoint::open(data_path(name));
      const std::vector<Request> requests = {
          {.prompt = some_tokens(40, checkpoint.config().vocab, 5)},
          {.prompt = some_tokens(7, checkpoint.config().vocab, 6)}};
      const ReferenceOptions options{.dtype = dtype};
      const auto model = open_reference().model(checkpoint, options, dtype);
      const auto oracle = open_reference().oracle(checkpoint, options);
      Manifest manifest{.graph = graph_of(checkpoint.config()), .dtype = dtype};
      for (size_t r = 0; r < requests.size(); ++r)
        manifest.requests.push_back({.id = static_cast<int32_t>(r), .prompt = requests[r].prompt});
      Judge judge(manifest, *oracle, nullptr, nullptr, {});
      for (const Pass& pass : passes_of_reference(*model, requests)) judge.judge(pass);
      expect_clean(judge.finish(manifest.requests, true), name + " " + std::string(name_of(dtype)));
    }
}

// The first token that is not the reference's stems from the seeded bug, and the story says so.
TEST(Tokens, ThatDifferAreLedBack) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  const Result result =
      judged({.checkpoint = checkpoint,
              .reference = open_reference(),
              .engine = {.dtype = DType::bf16},
              .requests = {{.prompt = some_tokens(20, checkpoint.config().vocab), .max_new = 12}},
              .faults = {parse_fault("rope-interleaved@layer=2")},
              .causes = false});
  ASSERT_TRUE(result.first) << result.story;
  int64_t flips = 0;
  for (const Flip& flip : result.requests.at(0).flips) {
    ++flips;
    EXPECT_EQ(flip.ancestor, "layer 2 attn.q_rope");
  }
  ASSERT_GT(flips, 0) << "seed another bug: this one turned no token";
  EXPECT_NE(result.story.find("first token that differs: request 0, position "), std::string::npos)
      << result.story;
  for (const Finding& finding : result.findings)
    EXPECT_NE(finding.node.place.point->name, "logits");
}

class MustFail : public testing::Test {
 protected:
  Checkpoint checkpoint_ = Checkpoint::open(data_path("bard-qwen3"));
  JudgedRun run_{.checkpoint = checkpoint_,
                 .reference = open_reference(),
                 .engine = {.dtype = DType::bf16},
                 .requests = {{.prompt = some_tokens(20, 4096), .max_new = 2}}};
};

TEST_F(MustFail, LimitsTimesZero) {
  run_.judge.limit_scale = 0;
  run_.causes = false;  // everything is wrong, and nobody asks why
  const Result result = judged(run_);
  EXPECT_EQ(exit_status(result), 1) << result.story;
}

TEST_F(MustFail, ASelectionOfNothing) {
  run_.judge.selection = Selection("attn.*", "99", "", "");
  const Result result = judged(run_);
  EXPECT_EQ(result.expected, 0);
  EXPECT_EQ(exit_status(result), 2) << result.story;
}

TEST_F(MustFail, AWrongDtypeDeclared) {
  const ReferenceOptions options{.dtype = DType::f16};
  const auto oracle = open_reference().oracle(checkpoint_, options);
  const Served served = serve(checkpoint_, {.dtype = DType::bf16}, run_.requests);
  Manifest manifest{.graph = graph_of(checkpoint_.config()), .dtype = DType::f16};
  Judge judge(manifest, *oracle, nullptr, nullptr, {});
  for (const Pass& pass : served.passes) judge.judge(pass);
  const Result result = judge.finish({}, true);
  EXPECT_EQ(exit_status(result), 1) << result.story;
  EXPECT_GT(result.counts[Verdict::structural], 0);
}

}  // namespace
}  // namespace lockstep
