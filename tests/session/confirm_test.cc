// Findings are proved by putting ops right: what was seeded is confirmed, several at once too, and
// what no op makes is said not to have been tried.
#include "src/session/confirm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "src/judge/budget.h"
#include "src/judge/ledger.h"
#include "tests/judged.h"
#include "tests/whole.h"

namespace lockstep {
namespace {

class ConfirmTest : public testing::TestWithParam<const char*> {
 protected:
  JudgedRun run_with(const std::vector<std::string>& faults) {
    const int64_t vocab = checkpoint_.config().vocab;
    JudgedRun run{.checkpoint = checkpoint_,
                  .reference = open_reference(),
                  .engine = {.device = TestDevice::device(),
                             .dtype = DType::bf16,
                             .page_size = 4,
                             .page_order_seed = 3},
                  .requests = {{.prompt = some_tokens(9, vocab, 1), .max_new = 3},
                               {.prompt = some_tokens(14, vocab, 2), .max_new = 2}},
                  .causes = false};
    for (const std::string& fault : faults) run.faults.push_back(parse_fault(fault));
    run.engine.pages = pages_for(run.requests, run.engine.page_size);
    return run;
  }
  static std::vector<std::string> confirmed(const std::vector<Confirmation>& all) {
    std::vector<std::string> places;
    for (const Confirmation& c : all) {
      EXPECT_TRUE(c.confirmed) << text_of(c.place) << ": " << c.says;
      if (c.confirmed) places.push_back(text_of(c.place));
    }
    return places;
  }

  Checkpoint checkpoint_ = Checkpoint::open(data_path(GetParam()));
};

// What is the same of every model: of one alone, unless all is run.
class ConfirmOnce : public ConfirmTest {};

TEST_P(ConfirmTest, ASeededBugIsConfirmedAndNothingElse) {
  const JudgedRun run = run_with({"softmax-scale-missing@layer=2"});
  const Result result = judge_run(run);
  EXPECT_EQ(confirmed(confirm(run, result)), std::vector<std::string>{"layer 2 attn.out"});
}

TEST_P(ConfirmTest, ThreeBugsAtOnceAreEachConfirmed) {
  const JudgedRun run = run_with({"softmax-scale-missing@layer=0", "rope-interleaved@layer=2",
                                  "causal-mask-off-by-one@layer=4"});
  const Result result = judge_run(run);
  EXPECT_EQ(confirmed(confirm(run, result)),
            (std::vector<std::string>{"layer 0 attn.out", "layer 2 attn.q_rope",
                                      "layer 2 attn.k_rope", "layer 4 attn.out"}));
}

// Of two bugs, each alone put right leaves the other's tokens.
TEST_P(ConfirmTest, SaysWhichTokensComeBackWhenAPlaceIsPutRight) {
  JudgedRun run = run_with({"softmax-scale-missing@layer=0"});
  for (Request& request : run.requests) request.max_new = 6;
  run.engine.pages = pages_for(run.requests, run.engine.page_size);
  Result result = judge_run(run);
  int64_t flips = 0;
  for (const RequestResult& request : result.requests)
    flips +=
        std::ranges::count_if(request.flips, [](const Flip& f) { return !f.ancestor.empty(); });
  ASSERT_GT(flips, 0) << "the bug must move a token";
  std::vector<Confirmation> all = confirm(run, result);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_TRUE(all[0].confirmed) << all[0].says;
  EXPECT_NE(all[0].says.find(flips == 1 ? "comes back when it is put right"
                                        : fmt::format("; {} of {} tokens that differ come back "
                                                      "when it alone is put right",
                                                      flips, flips)),
            std::string::npos)
      << all[0].says;

  if (std::string(GetParam()) != "bard-qwen3") return;
  run.faults.push_back(parse_fault("rope-interleaved@layer=2"));
  result = judge_run(run);
  all = confirm(run, result);
  ASSERT_EQ(all.size(), 3u);
  for (const Confirmation& c : all) {
    if (c.place.layer != 2) continue;
    EXPECT_EQ(c.says.find("comes back when it is put right"), std::string::npos)
        << "Q and K are both wrong, and attention before them: " << c.says;
    EXPECT_TRUE(c.says.find("brings no token back") != std::string::npos ||
                c.says.find("when it alone is put right") != std::string::npos)
        << c.says;
  }
}

TEST_P(ConfirmOnce, APlaceThatIsRightIsNotConfirmed) {
  const JudgedRun run = run_with({});
  Result result = judge_run(run);
  ASSERT_EQ(result.verdict, RunVerdict::clean);
  result.findings.push_back(
      {.node = {.place = {&point("mlp.up"), 3}}});  // as a judge in error would
  const std::vector<Confirmation> all = confirm(run, result);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_FALSE(all[0].confirmed);
  EXPECT_NE(all[0].says.find("does nothing wrong"), std::string::npos) << all[0].says;
}

TEST_P(ConfirmOnce, ABlamedNeighbourIsNotConfirmed) {
  const JudgedRun run = run_with({"softmax-scale-missing@layer=2"});
  Result result = judge_run(run);
  ASSERT_FALSE(result.findings.empty());
  for (Finding& finding : result.findings) finding.node.place = {&point("attn.o"), 2};
  for (const Confirmation& c : confirm(run, result))
    EXPECT_EQ(c.confirmed, c.place == (Place{&point("attn.out"), 2})) << c.says;
}

TEST_P(ConfirmOnce, WhatNoOpMakesIsNotTried) {
  const JudgedRun run = run_with({"wrong-page@layer=1"});
  const std::vector<Confirmation> all = confirm(run, judge_run(run));
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(text_of(all[0].place), "layer 1 attn.kv");
  EXPECT_FALSE(all[0].confirmed);
  EXPECT_NE(all[0].says.find("no op computes this"), std::string::npos) << all[0].says;
}

TEST_P(ConfirmTest, EveryOpCanBePutRight) {
  // Every op spoiled in one layer and at the ends, then put right: the run is clean, and bit for
  // bit the exact results.
  JudgedRun run = run_with({"rope-interleaved@layer=1", "softmax-scale-missing@layer=1"});
  std::vector<Place> all;
  for (const Place& place : graph_of(checkpoint_.config()).places())
    if (OpWatch::possible(place)) all.push_back(place);
  const auto oracle = open_reference().oracle(checkpoint_, {.dtype = DType::bf16});
  Substitution substitution(*oracle, DType::bf16, all);
  run.watch = &substitution;
  const Result result = judge_run(run);
  EXPECT_EQ(result.verdict, RunVerdict::clean) << result.story;
  int64_t angles = 0;  // of the rotary tables, which no op of the engine's makes
  for (const PlaceSummary& place : result.places)
    if (place.place.point->op == OpKind::angles) angles += place.expected;
  EXPECT_GT(angles, 0);
  EXPECT_GE(result.counts[Verdict::bitwise], result.expected - angles);
}

TEST_P(ConfirmOnce, PlacesPastTheLimitAreSaidNotToHaveBeenTried) {
  const JudgedRun run = run_with({"rope-interleaved"});
  const std::vector<Confirmation> all = confirm(run, judge_run(run), 2);
  ASSERT_GE(all.size(), 3u);
  EXPECT_FALSE(all[2].confirmed);
  EXPECT_NE(all[2].says.find("only the first 2 places"), std::string::npos) << all[2].says;
}

INSTANTIATE_TEST_SUITE_P(Models, ConfirmTest, testing::Values("bard-qwen3", "bard-qwen2.5"),
                         [](const auto& info) {
                           return std::string(info.param) == "bard-qwen3" ? "qwen3" : "qwen2";
                         });

INSTANTIATE_TEST_SUITE_P(Models, ConfirmOnce,
                         testing::ValuesIn(whole() ? std::vector{"bard-qwen3", "bard-qwen2.5"}
                                                   : std::vector{"bard-qwen2.5"}),
                         [](const auto& info) {
                           return std::string(info.param) == "bard-qwen3" ? "qwen3" : "qwen2";
                         });

// Oracles that are two budgets off at one element of one place: the first of the last prompt token
// of the first request, whichever rows it is asked about with.
class WrongLibrary final : public ReferenceLibrary {
 public:
  explicit WrongLibrary(Place place) : place_(place) {}
  std::string version() const override { return open_reference().version(); }
  bool has_gpu(int number) const override { return open_reference().has_gpu(number); }
  void bound_memory(int number, int64_t bytes) override {
    open_reference().bound_memory(number, bytes);
  }
  void free_unused(int number) override { open_reference().free_unused(number); }
  std::unique_ptr<ReferenceModel> model(const Checkpoint& checkpoint,
                                        const ReferenceOptions& options, DType compute) override {
    return open_reference().model(checkpoint, options, compute);
  }
  std::unique_ptr<Oracle> oracle(const Checkpoint& checkpoint,
                                 const ReferenceOptions& options) override {
    return std::make_unique<Wrong>(open_reference().oracle(checkpoint, options), place_);
  }
  std::unique_ptr<Hypotheses> hypotheses(const Checkpoint& checkpoint,
                                         const ReferenceOptions& options) override {
    return open_reference().hypotheses(checkpoint, options);
  }
  std::unique_ptr<ErrorSharer> error_sharer(const Checkpoint& checkpoint,
                                            const ReferenceOptions& options) override {
    return open_reference().error_sharer(checkpoint, options);
  }

 private:
  class Wrong final : public Oracle {
   public:
    Wrong(std::unique_ptr<Oracle> right, Place place) : right_(std::move(right)), place_(place) {}
    Graph graph() const override { return right_->graph(); }
    bool has_bias(const Place& place) const override { return right_->has_bias(place); }
    int64_t chosen_experts() const override { return right_->chosen_experts(); }
    Exact evaluate(const OracleCall& call) override {
      Exact exact = right_->evaluate(call);
      const auto row = std::ranges::find(call.rows, Row{0, 8}) - call.rows.begin();
      if (!(call.place == place_) || row == std::ssize(call.rows)) return exact;
      const auto at = static_cast<size_t>(row) * exact.want.size() / call.rows.size();
      std::vector<double> want(exact.want.begin(), exact.want.end());
      const Budget budget = budget_of(place_.point->op, exact, call.dtype);
      want[at] -= std::copysign(2 * budget.limit[at], want[at]);
      exact.want = std::move(want);
      return exact;
    }

   private:
    std::unique_ptr<Oracle> right_;
    Place place_;
  };
  Place place_;
};

// An engine that is right and an oracle that is not: the two agree with themselves, so that running
// again shows the same, and only another hand tells them apart.
TEST_P(ConfirmOnce, WhatAWrongOracleSaysIsNotConfirmed) {
  std::vector<Place> places = {{&point("attn.norm"), 1},     {&point("attn.q"), 0},
                               {&point("attn.k_rope"), 2},   {&point("attn.out"), 1},
                               {&point("attn.residual"), 0}, {&point("mlp.act"), 3},
                               {&point("embed"), -1},        {&point("logits"), -1}};
  for (const Place& place : places) {
    WrongLibrary library(place);
    const JudgedRun of_right = run_with({});
    const JudgedRun run{.checkpoint = checkpoint_,
                        .reference = library,
                        .engine = of_right.engine,
                        .requests = of_right.requests,
                        .causes = false};
    const Result result = judge_run(run);
    ASSERT_TRUE(result.first) << text_of(place) << ": " << result.story;
    ASSERT_EQ(result.first->node.place, place);
    const std::vector<Confirmation> all = confirm(run, result);
    ASSERT_FALSE(all.empty());
    EXPECT_FALSE(all[0].confirmed) << text_of(place) << ": " << all[0].says;
    EXPECT_TRUE(all[0].says.starts_with("not confirmed: a second computation in long double gives"))
        << text_of(place) << ": " << all[0].says;
    EXPECT_NE(all[0].says.find("the oracle is the suspect"), std::string::npos) << all[0].says;
  }
}

TEST_P(ConfirmOnce, SaysWhatTheSecondComputationGives) {
  const JudgedRun run = run_with({"gelu-for-silu@layer=1"});
  const std::vector<Confirmation> all = confirm(run, judge_run(run));
  ASSERT_FALSE(all.empty());
  EXPECT_TRUE(all[0].confirmed) << all[0].says;
  EXPECT_NE(all[0].says.find("a second computation in long double gives "), std::string::npos);
  EXPECT_NE(all[0].says.find("; the engine wrote "), std::string::npos);
  EXPECT_NE(all[0].says.find(" ulp away"), std::string::npos) << all[0].says;
}

TEST(OpWatch, RefusesWhatNoOpComputes) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-default"));
  const auto oracle = open_reference().oracle(checkpoint, {.dtype = DType::bf16});
  const std::string error = error_of([&] {
    Substitution(*oracle, DType::bf16, {{&point("attn.kv"), 0}});
  });
  EXPECT_NE(error.find("layer 0 attn.kv was to be watched"), std::string::npos) << error;
}

// The effect of a fault on the inputs that the engine had, at one place.
double effect_at(const Checkpoint& checkpoint, const std::string& fault, const Place& place) {
  const auto oracle = open_reference().oracle(checkpoint, {.dtype = DType::bf16});
  EffectMeter meter(*oracle, DType::bf16, {place});
  JudgedRun run{.checkpoint = checkpoint,
                .reference = open_reference(),
                .engine = {.device = TestDevice::device(), .dtype = DType::bf16, .page_size = 4},
                .requests = {{.prompt = some_tokens(9, checkpoint.config().vocab), .max_new = 2}},
                .watch = &meter};
  if (!fault.empty()) run.faults.push_back(parse_fault(fault));
  judged(run);
  return meter.effect();
}

TEST(EffectMeter, IsZeroWithoutAFaultAndLargeForALargeOne) {
  const Checkpoint bard = Checkpoint::open(data_path("bard-qwen3"));
  const Place norm{&point("attn.norm"), 0}, attention{&point("attn.out"), 0};
  for (const Place& place : {norm, attention, Place{&point("embed"), -1},
                             Place{&point("attn.residual"), 1}, Place{&point("logits"), -1}})
    EXPECT_EQ(effect_at(bard, "", place), 0) << text_of(place);
  EXPECT_GT(effect_at(bard, "softmax-scale-missing@layer=0", attention), 2);
  EXPECT_EQ(effect_at(bard, "softmax-scale-missing@layer=1", attention), 0) << "of another layer";
  // Twice the norm's epsilon moves little, a thousand times more moves more.
  const double small = effect_at(bard, "rms-norm-eps@layer=0,size=1e-5", norm);
  EXPECT_GT(effect_at(bard, "rms-norm-eps@layer=0,size=1e-2", norm), small);
}

}  // namespace
}  // namespace lockstep
