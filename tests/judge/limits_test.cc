#include "src/judge/limits.h"

#include <gtest/gtest.h>

#include <fstream>

#include "src/judge/judge.h"
#include "src/judge/ledger.h"
#include "tests/helpers.h"
#include "tests/judge/fake_model.h"

namespace lockstep {
namespace {

Limits some_limits() {
  Limits limits;
  limits.learn(OpKind::norm, DType::f32, {.inner = 0.1, .rms = 0.2, .share = 0.4, .gain = 1e-8});
  limits.learn(OpKind::linear, DType::bf16, {.inner = 0.9, .rms = 1.2, .share = 1e-4, .gain = 0});
  return limits;
}

std::string file_of(const std::string& text) {
  const std::string path = temp_path("limits.json");
  std::ofstream(path) << text;
  return path;
}

TEST(Limits, AreHalfAsMuchAgainAsWasReachedAndNeverOverTheory) {
  const Limits limits = some_limits();
  const OpLimits norm = limits.of(OpKind::norm, DType::f32);
  EXPECT_DOUBLE_EQ(norm.inner, 0.15);
  EXPECT_DOUBLE_EQ(norm.rms, 0.32);
  EXPECT_DOUBLE_EQ(norm.share, 0.6005);
  EXPECT_DOUBLE_EQ(norm.gain, 1.5e-8);
  EXPECT_EQ(limits.of(OpKind::linear, DType::bf16).inner, 1);
  Limits small;
  small.learn(OpKind::linear, DType::bf16, {.inner = 0.01});
  EXPECT_EQ(small.of(OpKind::linear, DType::bf16).inner, 1);    // the store hides what it is
  EXPECT_GT(limits.of(OpKind::linear, DType::bf16).gain, 0);    // nothing is held to 0
  EXPECT_EQ(limits.of(OpKind::norm, DType::bf16), OpLimits{});  // another dtype was not measured
  EXPECT_EQ(limits.of(OpKind::rope, DType::f32), OpLimits{});
}

TEST(Limits, OfSeveralRunsAreTheLarger) {
  Limits limits = some_limits();
  limits.learn(OpKind::norm, DType::f32, {.inner = 0.3, .rms = 0.1, .share = 0, .gain = 0});
  EXPECT_DOUBLE_EQ(limits.of(OpKind::norm, DType::f32).inner, 0.45);
  EXPECT_DOUBLE_EQ(limits.of(OpKind::norm, DType::f32).rms, 0.32);
  EXPECT_DOUBLE_EQ(limits.of(OpKind::norm, DType::f32).gain, 1.5e-8);
}

TEST(Limits, OfWhatWasNotMeasuredAreThoseOfTheory) {
  Limits limits = some_limits();  // whose linear ops had too few elements for a gain
  EXPECT_EQ(limits.of(OpKind::linear, DType::bf16).gain, OpLimits{}.gain);
  EXPECT_EQ(Limits::read(file_of(limits.json())), limits);
  limits.learn(OpKind::linear, DType::bf16, {.gain = 1e-8});
  EXPECT_DOUBLE_EQ(limits.of(OpKind::linear, DType::bf16).gain, 1.5e-8);
}

TEST(Limits, SurviveTheirFileAndAreNamedByIt) {
  const Limits limits = some_limits();
  const Limits again = Limits::read(file_of(limits.json()));
  EXPECT_EQ(again, limits);
  EXPECT_EQ(again.name(), limits.name());
  EXPECT_EQ(Limits{}.name(), "theory");
  Limits other = limits;
  other.learn(OpKind::norm, DType::f32, {.inner = 0.5});
  EXPECT_NE(other.name(), limits.name());
}

TEST(Limits, ThatAreNoneAreRefusedWithTheirFile) {
  const std::string good = some_limits().json();
  const auto with = [&](std::string from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return error_of([&] { Limits::read(file_of(text)); });
  };
  for (const std::string& error :
       {with("lockstep-limits", "limits"), with("\"1.0\"", "\"2.0\""), with("\"norm\"", "\"nrom\""),
        with("0.32", "-1"), with("0.32", "\"x\""), with("T2_T4", "T2"), with("{", "")})
    EXPECT_NE(error.find("limits.json"), std::string::npos) << error;
  EXPECT_NE(with("fp32", "fp31").find("fp31"), std::string::npos);
  EXPECT_NE(error_of([] { Limits::read("/none"); }).find("/none"), std::string::npos);
}

TEST(Limits, OfAFolderAreRefusedWithIt) {
  const std::string folder = testing::TempDir();
  EXPECT_EQ(error_of([&] { Limits::read(folder); }),
            "\"" + folder + "\" should be a regular file and is a folder: give the path of a file");
}

TEST(Limits, TightenWhatIsBeyondTheRoundingOfTheStore) {
  Budget budget{.limit = {1.5, 0.5}, .variance = {1, 1}, .gain = 1e-3, .misrounds = 0.02};
  const std::vector<double> want = {128, 64};  // half an ulp of bf16 is 0.5 and 0.25
  tighten(budget, want, DType::bf16, {.inner = 0.1, .share = 0.001, .gain = 1e-5});
  EXPECT_DOUBLE_EQ(budget.limit[0], 0.6);
  EXPECT_DOUBLE_EQ(budget.limit[1], 0.275);
  EXPECT_EQ(budget.gain, 1e-5);
  EXPECT_EQ(budget.misrounds, 0.001);
  std::vector<Statistic> statistics{{StatisticKind::max_error, 0.5, 1, ""},
                                    {StatisticKind::rms_error, 0.5, 1.1, ""},
                                    {StatisticKind::worst_slice, 0.5, 1.9, ""}};
  tighten(statistics, {.rms = 0.3});
  EXPECT_EQ(statistics[0].limit, 1);
  EXPECT_EQ(statistics[1].limit, 0.3);
  EXPECT_EQ(statistics[2].limit, 0.3);
}

// T3 of all elements has those of a usual size alone, and so have learnt shares of it.
TEST(Limits, OfSharesLeaveSumsThatCancelAsTheyAre) {
  Budget budget{
      .limit = {1, 1}, .variance = {1, 1}, .misround = {0.01, 0.4}, .usual_misround = 0.02};
  tighten(budget, std::vector<double>{128, 0.5}, DType::bf16, {.share = 0.001});
  EXPECT_EQ(budget.misround, (std::vector{0.001, 0.4}));
}

Result judged(const FakeRun& run, JudgeOptions options) {
  FakeOracle oracle;
  Judge judge(run.manifest, oracle, nullptr, nullptr, std::move(options));
  for (const Pass& pass : run.passes) judge.judge(pass);
  return judge.finish(run.requests, true);
}

// In fp32 theory allows a product 30 ulp; a kernel that rounds once needs none of them.
TEST(Limits, LearntFromACleanRunShowWhatTheoryDoesNot) {
  FakeModel good(DType::f32);
  const FakeRun clean = fake_run(good, DType::f32);
  FakeModel bad(DType::f32, [](const Place& p, const PassInfo& info, std::vector<double>& v) {
    if (p.point->name == "mlp.down" && p.layer == 1 && info.pass == 0)
      v[7] += 2e-7 * std::abs(v[7]);
  });
  const FakeRun off = fake_run(bad, DType::f32);
  EXPECT_EQ(judged(off, {}).verdict, RunVerdict::clean);

  Limits limits;
  EXPECT_EQ(judged(clean, {.learn = &limits}).provenance.at("limits"), "theory");
  EXPECT_NE(limits.name(), "theory");
  EXPECT_EQ(judged(clean, {.limits = limits}).verdict, RunVerdict::clean);
  const Result result = judged(off, {.limits = limits});
  EXPECT_EQ(result.verdict, RunVerdict::diverged);
  ASSERT_TRUE(result.first);
  EXPECT_EQ(text_of(result.first->node.place), "layer 1 mlp.down");
  EXPECT_EQ(result.provenance.at("limits"), limits.name());
}

TEST(Limits, AreNotLearntFromABug) {
  FakeModel bad(DType::f32, [](const Place& p, const PassInfo&, std::vector<double>& v) {
    if (p.point->name == "mlp.down") v[7] += 1;
  });
  Limits limits;
  EXPECT_EQ(judged(fake_run(bad, DType::f32), {.learn = &limits}).verdict, RunVerdict::diverged);
  EXPECT_EQ(limits, Limits{});
}

}  // namespace
}  // namespace lockstep
