#include "src/judge/diff_noise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "src/judge/diff.h"
#include "src/judge/ledger.h"
#include "tests/judge/memory_trace.h"

namespace lockstep {
namespace {

FakeRun run_of(Spoil spoil = {}) {
  FakeModel model(DType::bf16, std::move(spoil));
  return fake_run(model, DType::bf16);
}

// Keeps one point alone, as a trace does with --points.
FakeRun only(FakeRun run, const std::string& name) {
  for (Pass& pass : run.passes)
    std::erase_if(pass.tensors, [&](const KeptTensor& t) { return t.point->name != name; });
  return run;
}

DiffResult diff_of(FakeRun a, FakeRun b) {
  MemoryTrace x(std::move(a)), y(std::move(b));
  return diff(x, y, {});
}

size_t at(const std::vector<Place>& places, const std::string& name, int layer) {
  for (size_t i = 0; i < places.size(); ++i)
    if (places[i].point->name == name && places[i].layer == layer) return i;
  ADD_FAILURE() << name;
  return 0;
}

TEST(DiffNoise, IsOfWhatIsShownBefore) {
  const Graph graph = run_of().manifest.graph;
  const std::vector<Place> places = places_of(graph);
  const auto place = [&](const std::string& name, int layer) { return at(places, name, layer); };
  std::vector<bool> shown(places.size(), true);
  const size_t act = place("mlp.act", 0), gate = place("mlp.gate", 0), up = place("mlp.up", 0),
               norm = place("mlp.norm", 0), stream = place("attn.residual", 0);
  EXPECT_EQ(DiffNoise(graph, places, shown, DType::bf16).sources(act), (std::vector{gate, up}));
  shown[gate] = false;
  EXPECT_EQ(DiffNoise(graph, places, shown, DType::bf16).sources(act), (std::vector{norm, up}));
  shown[norm] = false;  // what up reads is of no matter: up is shown
  DiffNoise noise(graph, places, shown, DType::bf16);
  EXPECT_EQ(noise.sources(act), (std::vector{stream, up}));
  noise.enter(stream, 3, {0.5, 2});
  noise.enter(stream, 3, {1, 1});
  noise.enter(up, 4, {0.25, 4});
  EXPECT_EQ(noise.inherited(act, 3, false).all, 1);
  EXPECT_EQ(noise.inherited(act, 3, false).worst, 2);
  EXPECT_EQ(noise.inherited(act, 3, true).worst, 4);
  EXPECT_EQ(noise.inherited(act, 5, false).all, 0);
  // Two ops that are not shown, and its own: in the root of the sum of squares.
  const double own = 4 * 0x1p-8 + 64 * 0x1p-24;
  EXPECT_DOUBLE_EQ(noise.limit(act, {}).all, own * std::sqrt(3.0));
  EXPECT_DOUBLE_EQ(noise.limit(up, {}).all, own * std::sqrt(2.0));
  EXPECT_EQ(noise.limit(up, {}).worst, INFINITY);
  EXPECT_DOUBLE_EQ(noise.limit(stream, {0.1, 0.2}).worst, kDiffOutlier * (own + kDiffGrowth * 0.2));
}

// Each op of a layer adds less than one may, all together more.
TEST(DiffNoise, OfOpsThatAreNotShownIsExplained) {
  const auto rounding = [](const Place& p, const PassInfo&, std::vector<double>& v) {
    if (p.layer == 0 && p.point->op == OpKind::linear)
      for (double& x : v) x *= 1.012;
  };
  const DiffResult whole = diff_of(run_of(), run_of(rounding));
  EXPECT_EQ(whole.verdict, "noise") << whole.story;
  const DiffResult part = diff_of(only(run_of(), "mlp.down"), only(run_of(rounding), "mlp.down"));
  EXPECT_EQ(part.verdict, "noise") << part.story;
  const auto bug = [](const Place& p, const PassInfo&, std::vector<double>& v) {
    if (p.layer == 0 && p.point->name == "mlp.act")
      for (double& x : v) x *= 1.5;
  };
  const DiffResult wrong = diff_of(only(run_of(), "mlp.down"), only(run_of(bug), "mlp.down"));
  EXPECT_EQ(wrong.verdict, "different") << wrong.story;
}

// Over all rows of its request it is nothing.
TEST(DiffNoise, ExplainsNoSingleElement) {
  const auto bug = [](const Place& p, const PassInfo& pass, std::vector<double>& v) {
    if (p.layer != 1 || p.point->name != "mlp.up" || pass.pass != 0) return;
    const size_t width = v.size() / pass.rows.size();
    const auto row = std::span(v).subspan(5 * width, width);
    *std::ranges::max_element(row) *= 1.06;
  };
  const DiffResult r = diff_of(run_of(), run_of(bug));
  EXPECT_EQ(r.verdict, "different") << r.story;
  ASSERT_TRUE(r.first_kind) << r.story;
  EXPECT_EQ(text_of(r.first_kind->place), "layer 1 mlp.up");
  EXPECT_EQ(r.first_kind->position, 5);
  EXPECT_TRUE(r.first_kind->of_element);
  EXPECT_NEAR(r.first_kind->relative, 0.06 / 1.06, 0.004);
  EXPECT_LT(r.first_kind->limit, 0.032);
  EXPECT_NE(r.story.find("of one element, where noise explains"), std::string::npos) << r.story;
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
  for (const auto& r : {diff_of(run_of(), run_of(bug)), diff_of(run_of(bug), run_of())}) {
    ASSERT_TRUE(r.first_kind) << r.story;
    EXPECT_EQ(text_of(r.first_kind->place), "layer 0 mlp.norm");
  }
}

// Of other experts the numbers are others, and rounding may choose them.
TEST(DiffNoise, DependsOnExpertsThatAreNotShown) {
  const auto run = [](double x, double expert) {
    FakeRun run{.manifest = {.graph = {1, false, {0}}}};
    Pass& pass = run.passes.emplace_back();
    pass.info.rows.push_back({{0, 0}, 5, 0});
    const auto show = [&](const Point& of, const std::vector<double>& values, DType dtype) {
      KeptTensor& t = pass.tensors.emplace_back();
      t.point = &of;
      t.layer = 0;
      t.data = rounded_tensor(values, {1, std::ssize(values)}, dtype);
      t.shape = t.data.view().shape;
      t.dtype = dtype;
      t.rows = {{0, 0}};
      t.row_hashes = row_hashes_of(t.data);
    };
    if (expert >= 0) show(point("mlp.experts"), {expert}, DType::i32);
    show(point("mlp.combine"), {x, 1}, DType::f32);
    return run;
  };
  const DiffResult hidden = diff_of(run(1, -1), run(5, -1));
  EXPECT_EQ(hidden.verdict, "inconclusive") << hidden.story;
  EXPECT_NE(hidden.story.find("layer 0 mlp.combine"), std::string::npos) << hidden.story;
  EXPECT_EQ(diff_of(run(1, -1), run(1 + 0x1p-20, -1)).verdict, "noise");
  const DiffResult same = diff_of(run(1, 2), run(5, 2));
  ASSERT_TRUE(same.first_kind) << same.story;
  EXPECT_EQ(text_of(same.first_kind->place), "layer 0 mlp.combine");
}

}  // namespace
}  // namespace lockstep
