#include "src/diff/diff_noise.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "src/judge/ledger.h"
#include "src/weights/qwen_graph.h"
#include "tests/diff/diff_runs.h"

namespace lockstep {
namespace {

// Keeps one point alone, as a trace does with --points.
FakeRun only(FakeRun run, const std::string& name) {
  for (Pass& pass : run.passes)
    std::erase_if(pass.tensors, [&](const RecordedTensor& t) { return t.point->name != name; });
  return run;
}

TEST(DiffNoise, IsOfWhatIsShownBefore) {
  // A diamond: 1 and 2 read 0, and 3 reads both.
  const std::vector<Place> places = {{&point("mlp.norm"), 0},
                                     {&point("mlp.gate"), 0},
                                     {&point("mlp.up"), 0},
                                     {&point("mlp.act"), 0}};
  const std::vector<std::vector<size_t>> inputs = {{}, {0}, {0}, {1, 2}};
  const auto noise_of = [&](const std::vector<bool>& shown) {
    return DiffNoise(places, inputs, shown, DType::bf16);
  };
  using Sources = std::vector<size_t>;
  EXPECT_EQ(noise_of({true, true, true, true}).sources(3), (Sources{1, 2}));
  EXPECT_EQ(noise_of({true, false, false, true}).sources(3), (Sources{0}));
  EXPECT_EQ(noise_of({false, false, true, true}).sources(3), (Sources{2}));
  DiffNoise noise = noise_of({true, false, true, true});
  EXPECT_EQ(noise.sources(3), (Sources{0, 2}));
  noise.enter(0, 7, {0.5, 2});
  noise.enter(0, 7, {1, 1});
  noise.enter(2, 8, {0.25, 4});
  EXPECT_EQ(noise.inherited(3, 7, false).all, 1);
  EXPECT_EQ(noise.inherited(3, 7, false).worst, 2);
  EXPECT_EQ(noise.inherited(3, 7, true).worst, 4);
  EXPECT_EQ(noise.inherited(3, 9, false).all, 0);
}

TEST(DiffNoise, GrowsWithTheInputsAndTheOpsThatAreNotShown) {
  const std::vector<Place> places = {{&point("attn.o"), 0},
                                     {&point("attn.residual"), 0},
                                     {&point("mlp.norm"), 0},
                                     {&point("mlp.up"), 0}};
  const DiffNoise noise(places, {{}, {0}, {1}, {2}}, {true, false, false, true}, DType::bf16);
  const double own = 4 * 0x1p-8 + 64 * 0x1p-24;
  EXPECT_DOUBLE_EQ(noise.limit(0, {0.1, 0.2}).all, own + kDiffGrowth * 0.1);
  EXPECT_DOUBLE_EQ(noise.limit(0, {0.1, 0.2}).worst, kDiffOutlier * (own + kDiffGrowth * 0.2));
  EXPECT_DOUBLE_EQ(noise.limit(3, {}).all, own * std::sqrt(3.0)) << "two and its own";
  EXPECT_EQ(noise.limit(3, {}).worst, INFINITY);
}

// The screen cannot tell an error of that size from noise, and does not say that it is none.
TEST(DiffNoise, IsNotSaidToBeRightWhereAnErrorMayHide) {
  const auto one_percent = [](const Place& p, const PassInfo&, std::vector<double>& v) {
    if (p.layer == 0 && p.point->name == "mlp.act")
      for (double& x : v) x *= 1.01;
  };
  FakeRun another = run_of(DType::bf16, one_percent);
  another.manifest.contracts.clear();
  const DiffResult r = diff_of(run_of(), another);
  ASSERT_EQ(r.verdict, DiffResult::Verdict::noise) << r.story;
  ASSERT_TRUE(r.furthest);
  EXPECT_GT(r.furthest->relative, 0.005);
  EXPECT_LE(r.furthest->relative, r.furthest->limit);
  EXPECT_NE(r.story.find(fmt::format("is {:.2g} apart, noise {:.2g}, and whether that is an error "
                                     "only a judgement tells (--model DIR)",
                                     r.furthest->relative, r.furthest->limit)),
            std::string::npos)
      << r.story;
  EXPECT_FALSE(diff_of(run_of(), run_of()).furthest);
}

// Each op of a layer adds less than one may, all together more.
TEST(DiffNoise, OfOpsThatAreNotShownIsExplained) {
  const auto rounding = [](const Place& p, const PassInfo&, std::vector<double>& v) {
    if (p.layer == 0 && p.point->op == OpKind::linear)
      for (double& x : v) x *= 1.012;
  };
  FakeRun another = run_of(DType::bf16, rounding);
  another.manifest.contracts.clear();  // then it need not be the same op
  const DiffResult whole = diff_of(run_of(), another);
  EXPECT_EQ(whole.verdict, DiffResult::Verdict::noise) << whole.story;
  const DiffResult part =
      diff_of(only(run_of(), "mlp.down"), only(run_of(DType::bf16, rounding), "mlp.down"));
  EXPECT_EQ(part.verdict, DiffResult::Verdict::noise) << part.story;
  const auto bug = [](const Place& p, const PassInfo&, std::vector<double>& v) {
    if (p.layer == 0 && p.point->name == "mlp.act")
      for (double& x : v) x *= 1.5;
  };
  const DiffResult wrong =
      diff_of(only(run_of(), "mlp.down"), only(run_of(DType::bf16, bug), "mlp.down"));
  EXPECT_EQ(wrong.verdict, DiffResult::Verdict::different) << wrong.story;
}

// Over all rows of its request it is nothing.
TEST(DiffNoise, ExplainsNoSingleElement) {
  const auto bug = [](const Place& p, const PassInfo& pass, std::vector<double>& v) {
    if (p.layer != 1 || p.point->name != "mlp.up" || pass.pass != 0) return;
    const size_t width = v.size() / pass.rows.size();
    const auto row = std::span(v).subspan(5 * width, width);
    *std::ranges::max_element(row) *= 1.06;
  };
  const DiffResult r = diff_of(run_of(), run_of(DType::bf16, bug));
  EXPECT_EQ(r.verdict, DiffResult::Verdict::different) << r.story;
  ASSERT_TRUE(r.first_kind) << r.story;
  EXPECT_EQ(text_of(r.first_kind->id.place), "layer 1 mlp.up");
  EXPECT_EQ(r.first_kind->position, 5);
  EXPECT_TRUE(r.first_kind->of_element);
  EXPECT_NEAR(r.first_kind->relative, 0.06 / 1.06, 0.004);
  EXPECT_LT(r.first_kind->limit, 0.032);
  EXPECT_NE(r.story.find("an element is 0.059 apart, noise 0.031"), std::string::npos) << r.story;
}

TEST(DiffNoise, AnElementIsMeasuredByItselfOrItsRow) {
  using Row = std::vector<double>;
  EXPECT_EQ(worst_of(Row{3, 4, 0}, Row{3, 4, 0}), 0);
  EXPECT_DOUBLE_EQ(worst_of(Row{100, 1, 1, 1}, Row{101, 1, 1, 1}), 1.0 / 101);
  EXPECT_DOUBLE_EQ(worst_of(Row{10, 0.1, 0, 0}, Row{10, 0.2, 0, 0}), 0.1 / std::sqrt(100.04 / 4));
  EXPECT_EQ(worst_of(Row{0, 0}, Row{0, 1}), 1);
  EXPECT_EQ(worst_of(Row{0, 1}, Row{0, -1}), 2);
  EXPECT_EQ(worst_of(Row{NAN, INFINITY}, Row{NAN, INFINITY}), 0);
  EXPECT_EQ(worst_of(Row{NAN, 1}, Row{NAN, 2}), 0.5);
  EXPECT_EQ(worst_of(Row{1, NAN}, Row{1, 1}), INFINITY);
  EXPECT_EQ(worst_of(Row{1, INFINITY}, Row{1, -INFINITY}), INFINITY);
}

// An unwritten row: relative to nothing it would be infinite, relative to the other trace's it is
// all there is.
TEST(DiffNoise, ExplainsNoRowThatIsNothingInOne) {
  const auto bug = [](const Place& p, const PassInfo& pass, std::vector<double>& v) {
    if (p.layer != 0 || p.point->name != "mlp.norm" || pass.pass != 0) return;
    const size_t width = v.size() / pass.rows.size();
    for (size_t i = 2 * width; i < 3 * width; ++i) v[i] = 0;
  };
  for (const auto& r :
       {diff_of(run_of(), run_of(DType::bf16, bug)), diff_of(run_of(DType::bf16, bug), run_of())}) {
    ASSERT_TRUE(r.first_kind) << r.story;
    EXPECT_EQ(text_of(r.first_kind->id.place), "layer 0 mlp.norm");
  }
}

// Of other experts the numbers are others, and rounding may choose them.
TEST(DiffNoise, DependsOnExpertsThatAreNotShown) {
  const auto run = [](double x, double expert) {
    FakeRun run{.manifest = {.graph = qwen_graph({1, false, {0}})}};
    Pass& pass = run.passes.emplace_back();
    pass.info.rows.push_back({{0, 0}, 5, 0});
    if (expert >= 0) pass.tensors.push_back(kept(point("mlp.experts"), 0, {expert}, DType::i32));
    pass.tensors.push_back(kept(point("mlp.combine"), 0, {x, 1}, DType::f32));
    return run;
  };
  const DiffResult hidden = diff_of(run(1, -1), run(5, -1));
  EXPECT_EQ(hidden.verdict, DiffResult::Verdict::inconclusive) << hidden.story;
  EXPECT_NE(hidden.story.find("layer 0 mlp.combine"), std::string::npos) << hidden.story;
  EXPECT_EQ(diff_of(run(1, -1), run(1 + 0x1p-20, -1)).verdict, DiffResult::Verdict::noise);
  const DiffResult same = diff_of(run(1, 2), run(5, 2));
  ASSERT_TRUE(same.first_kind) << same.story;
  EXPECT_EQ(text_of(same.first_kind->id.place), "layer 0 mlp.combine");
}

}  // namespace
}  // namespace lockstep
