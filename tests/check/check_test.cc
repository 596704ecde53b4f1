// Checks as continuous integration makes them: whole runs beside a baseline.
#include "src/check/check.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cpu/simd.h"
#include "src/check/compare.h"
#include "tests/judged.h"

namespace lockstep {
namespace {

class Check : public testing::Test {
 protected:
  static const Checkpoint& checkpoint() {
    static const Checkpoint open = Checkpoint::open(data_path("bard-qwen3"));
    return open;
  }
  // Two requests of different lengths, one longer than a page.
  static std::vector<Request> requests() {
    const int64_t vocab = checkpoint().config().vocab;
    return {{.prompt = some_tokens(5, vocab), .max_new = 3},
            {.prompt = some_tokens(3, vocab, 2), .max_new = 2}};
  }
  static JudgedRun run_of(std::vector<Request> requests, std::vector<FaultRequest> faults = {}) {
    JudgedRun run{.checkpoint = checkpoint(),
                  .reference = open_reference(),
                  .engine = {.dtype = DType::bf16, .page_size = 4},
                  .requests = std::move(requests),
                  .faults = std::move(faults)};
    run.engine.pages = pages_for(run.requests, run.engine.page_size);
    run.provenance = {{"model", "bard-qwen3"},
                      {"model_xxh3", checkpoint().fingerprint()},
                      {"compute_dtype", "bf16"}};
    return run;
  }
  std::string path(const std::string& name) const { return folder_ / name; }
  CheckResult update(const std::string& name, JudgedRun run) const {
    return update_baseline(std::move(run), {.path = path(name)});
  }
  CheckResult check(const std::string& name, JudgedRun run) const {
    const Baseline baseline =
        read_baseline_for(path(name), checkpoint(), DType::bf16, run.requests);
    return check_against(baseline, std::move(run), {.path = path(name)});
  }

  TempFolder folder_;
};

std::string first_failure(const CheckResult& result) {
  return result.failures.empty() ? result.story : result.failures.front().says;
}

TEST_F(Check, PassesAgainAndAgainAndUpdatesToTheSameBytes) {
  const CheckResult made = update("a.json", run_of(requests()));
  ASSERT_TRUE(made.updated) << made.story;
  update("b.json", run_of(requests()));
  EXPECT_EQ(text_of(path("a.json")), text_of(path("b.json")));
  EXPECT_LT(text_of(path("a.json")).size(), 8192u);
  for (int i = 0; i < 5; ++i) {
    const CheckResult result = check("a.json", run_of(requests()));
    EXPECT_EQ(exit_status(result), 0) << result.story;
    EXPECT_EQ(result.notes.size(), 0u) << result.notes.front().says;
    EXPECT_EQ(result.forced, 3);  // the last token of each is never fed
    EXPECT_EQ(result.run.judged, made.run.judged);
  }
}

// Whichever instructions a CPU has: bits differ, and nothing else.
TEST_F(Check, HoldsAcrossCpus) {
  std::vector<Isa> all = {Isa::generic, Isa::avx2, Isa::avx512};
  std::erase_if(all, [best = best_isa()](Isa isa) { return isa > best; });
  int64_t changed = 0;
  for (const Isa then : all) {
    limit_isa(then);
    update("isa.json", run_of(requests()));
    for (const Isa now : all) {
      limit_isa(now);
      const CheckResult result = check("isa.json", run_of(requests()));
      EXPECT_EQ(result.verdict, CheckResult::Verdict::pass) << result.story;
      const bool bits =
          std::ranges::count(result.notes, CheckResult::Kind::bits, &CheckResult::Item::kind) > 0;
      EXPECT_TRUE(now != then || !bits);
      changed += bits ? 1 : 0;
    }
  }
  limit_isa(Isa::avx512);
  EXPECT_GT(changed + (all.size() == 1 ? 1 : 0), 0) << "all instances have the same bits";
}

TEST_F(Check, FailsForEveryFaultOfASampleAndNamesTheOp) {
  update("base.json", run_of(requests()));
  for (const char* name :
       {"rope-interleaved", "rope-position-off-by-one-in-decode", "qk-norm-missing",
        "softmax-scale-missing", "causal-mask-off-by-one", "last-page-tail-unmasked", "wrong-page",
        "token-cached-twice", "norm-gain-plus-one", "k-and-v-swapped", "projection-dead",
        "residual-missing", "gelu-for-silu", "token-repeated", "head-is-stale",
        "argmax-takes-runner-up"}) {
    const FaultRequest fault{.name = name};
    const CheckResult result = check("base.json", run_of(requests(), {fault}));
    EXPECT_EQ(exit_status(result), 1) << name << ": " << result.story;
    const std::string point(fault_of(fault).point);
    EXPECT_TRUE(std::ranges::any_of(
        result.failures,
        [&](const CheckResult::Item& i) { return i.says.find(point) != std::string::npos; }))
        << name << ": " << first_failure(result);
    EXPECT_EQ(result.failures.front().says.find(result.run.first->node.place.point->name) !=
                  std::string::npos,
              true);
  }
  const CheckResult idle = check("base.json", run_of(requests(), {{.name = "stale-prefix-page"}}));
  EXPECT_EQ(exit_status(idle), 2) << "a bug that acted nowhere was not passed";
  EXPECT_NE(idle.story.find("stale-prefix-page did not act"), std::string::npos) << idle.story;
}

TEST_F(Check, ServesRequestsThatDrawFreely) {
  std::vector<Request> drawing = requests();
  drawing[0].sampling.temperature = 1;
  drawing[1].samples = 2;
  ASSERT_TRUE(update("drawn.json", run_of(drawing)).updated);
  const CheckResult result = check("drawn.json", run_of(drawing));
  EXPECT_EQ(result.verdict, CheckResult::Verdict::pass) << result.story;
  EXPECT_EQ(result.forced, 0);
  EXPECT_EQ(result.notes.size(), 0u);
  // Seen only where samples of one prompt part inside a page.
  const CheckResult shared =
      check("drawn.json", run_of(drawing, {{.name = "written-while-shared"}}));
  EXPECT_EQ(shared.verdict, CheckResult::Verdict::fail) << shared.story;
}

TEST_F(Check, LeavesTheBaselineAloneUnlessTheRunIsClean) {
  update("base.json", run_of(requests()));
  const std::string before = text_of(path("base.json"));
  const CheckResult result = update("base.json", run_of(requests(), {{.name = "projection-dead"}}));
  EXPECT_EQ(exit_status(result), 1);
  EXPECT_FALSE(result.updated);
  EXPECT_NE(result.story.find("is left as it was"), std::string::npos) << result.story;
  EXPECT_EQ(text_of(path("base.json")), before);
}

TEST_F(Check, LeavesAFileAloneThatIsNoBaseline) {
  const std::string text = "{\"format\": \"lockstep-result\"}\n";
  folder_.write("result.json", text);
  EXPECT_NE(error_of([&] { update("result.json", run_of(requests())); }).find("is no baseline"),
            std::string::npos);
  EXPECT_EQ(text_of(path("result.json")), text);
}

TEST_F(Check, HoldsCalibratedClassesToTheLimitsThatTheBaselineKept) {
  JudgedRun run = run_of(requests());
  Limits limits;
  for (const OpKind op : {OpKind::norm, OpKind::linear}) limits.set(op, DType::bf16, {.rms = 2});
  run.judge.limits = limits;
  ASSERT_TRUE(update("held.json", run).updated);
  Baseline held = read_baseline(path("held.json"));
  EXPECT_EQ(held.limits(), limits);
  for (Baseline::OpClass& row : held.classes)
    if (row.op == OpKind::linear) row.limits.rms = row.reached.rms / 2;
  JudgedRun again = run_of(requests());
  again.causes = false;  // every product is a finding, and would be searched for them
  const CheckResult result = check_against(held, again, {.path = "held.json"});
  EXPECT_EQ(result.verdict, CheckResult::Verdict::fail) << result.story;
  EXPECT_EQ(result.failures.front().op_class, OpKind::linear);
  EXPECT_NE(first_failure(result).find("held to calibrated limits"), std::string::npos)
      << first_failure(result);
}

TEST_F(Check, RefusesTheBaselineOfSomethingElse) {
  update("base.json", run_of(requests()));
  const auto refusal = [&](const std::string& folder, DType dtype,
                           const std::vector<Request>& requests) {
    const Checkpoint other = Checkpoint::open(data_path(folder));
    const std::string error =
        error_of([&] { read_baseline_for(path("base.json"), other, dtype, requests); });
    EXPECT_NE(error.find("--update"), std::string::npos) << error;
    return error;
  };
  EXPECT_NE(refusal("bard-qwen2.5", DType::bf16, requests()).find("another model"),
            std::string::npos);
  EXPECT_NE(refusal("bard-qwen3", DType::f32, requests()).find("another dtype (bf16, now fp32)"),
            std::string::npos);
  std::vector<Request> fewer = requests(), longer = requests();
  fewer.pop_back();
  longer[1].max_new = 9;
  EXPECT_NE(refusal("bard-qwen3", DType::bf16, fewer).find("another set of requests (2 requests"),
            std::string::npos);
  EXPECT_NE(refusal("bard-qwen3", DType::bf16, longer).find("request 1 asks for something else"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
