#include "src/judge/judge.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <set>
#include <thread>

#include "src/judge/story.h"
#include "src/weights/qwen_graph.h"
#include "tests/judge/judge_fixture.h"

namespace lockstep {
namespace {

// 3 passes x 2 requests x (embed + 2 layers of 18 + final.norm, logits, token).
constexpr int64_t kNodes = 3 * 2 * (1 + 2 * 18 + 3);

TEST_F(JudgeTest, TheOracleRoundedIsBitwiseInEveryDtype) {
  for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const Result result = judged(clean(dtype));
    EXPECT_EQ(result.verdict, RunVerdict::clean) << result.story;
    EXPECT_EQ(exit_status(result), 0);
    EXPECT_EQ(result.expected, kNodes);
    EXPECT_EQ(result.judged, kNodes);
    EXPECT_EQ(count(result, Verdict::bitwise), kNodes);
    EXPECT_NE(result.story.find("240 of 240"), std::string::npos) << result.story;
    EXPECT_TRUE(flags_.empty());
    EXPECT_FALSE(result.blind.empty());
    ASSERT_TRUE(result.logits);
    EXPECT_EQ(result.logits->compared, 6);
    EXPECT_EQ(result.requests.size(), 2u);
    EXPECT_EQ(result.requests[1].prompt.size(), 9u);
  }
}

// A model that keeps what it was asked to show.
class AskedModel : public ReferenceModel {
 public:
  explicit AskedModel(DType dtype) : model_(dtype) {}
  void run(const PassInfo& pass, Probe& probe) override {
    for (const Place& place : qwen_graph({2, true}).places())
      if (probe.wants(*place.point, place.layer)) asked.insert(text_of(place));
    model_.run(pass, probe);
  }
  void follow(Routes) override {}
  void end(int32_t) override {}
  std::set<std::string> asked;

 private:
  FakeModel model_;
};

TEST_F(JudgeTest, AsksTheModelsForNothingThatItDoesNotCompare) {
  FakeRun run = clean();
  tensor(run.passes[0], "attn.q", 1).data = {};
  const auto asked = [&](const Selection& selection) {
    AskedModel exact(DType::f64), rounded(DType::bf16);
    Judge judge(run.manifest, oracle_, &exact, &rounded, {.selection = selection});
    judge.judge(run.passes[0]);
    // The fp64 model is held to the oracle too, and shows the caches that an attention reads.
    std::set<std::string> of_exact = exact.asked;
    for (const char* cache : {"layer 0 attn.kv", "layer 1 attn.kv"}) {
      EXPECT_EQ(of_exact.erase(cache), selection.is_everything() ? 1u : 0u);
    }
    EXPECT_EQ(of_exact, rounded.asked);
    return of_exact;
  };
  // All but the caches of both layers and what was kept as a digest.
  const std::set<std::string> all = asked({});
  EXPECT_EQ(all.size(), kNodes / 6 - 3u);
  EXPECT_TRUE(all.contains("layer 0 attn.q"));
  EXPECT_FALSE(all.contains("layer 1 attn.q"));
  EXPECT_FALSE(all.contains("layer 0 attn.kv"));
  // The logits say whether tokens differ, whatever is looked at.
  EXPECT_EQ(asked({"mlp.act,attn.k*", "1", "", ""}),
            (std::set<std::string>{"layer 1 attn.k", "layer 1 attn.k_norm", "layer 1 attn.k_rope",
                                   "layer 1 mlp.act", "logits"}));
}

// A model that takes its time, or fails at once.
class SlowModel : public ReferenceModel {
 public:
  explicit SlowModel(bool fails) : fails_(fails) {}
  void run(const PassInfo&, Probe&) override {
    check(!fails_, "no memory is left");
    runs = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    runs = false;
    ended = true;
  }
  void follow(Routes) override {}
  void end(int32_t) override {}
  std::atomic<bool> runs = false, ended = false;

 private:
  bool fails_;
};

// Whoever called lets go of the pass then.
TEST_F(JudgeTest, ThatThrowsLeavesNobodyReadingThePass) {
  const FakeRun run = clean();
  SlowModel exact(/*fails=*/true), rounded(/*fails=*/false);
  Judge judge(run.manifest, oracle_, &exact, &rounded, {.threads = 2});
  EXPECT_THROW(judge.judge(run.passes[0]), Error);
  EXPECT_TRUE(rounded.ended) << "it had begun";
  EXPECT_FALSE(rounded.runs);
}

TEST_F(JudgeTest, OneRoundingTheOtherWayIsRounding) {
  // To the next number: within budget only where the exact result lies near the middle.
  const Result result = judged(spoilt("mlp.gate", 1, 0, [](std::vector<double>& v) {
    for (double& x : v) {
      const double near = round_to(x, DType::bf16), unit = ulp(x, DType::bf16);
      const double other = x > near ? near + unit : near - unit;
      if (std::abs(other - x) < 0.5001 * unit) x = other;
    }
  }));
  EXPECT_EQ(result.verdict, RunVerdict::clean) << result.story;
}

TEST_F(JudgeTest, AnElementOffByTwoUlpIsFoundWithItsPlace) {
  const Result result = judged(spoilt("attn.q_rope", 1, 0, [](std::vector<double>& v) {
    v[32 * 5 + 8 * 3 + 2] += 2 * ulp(v[32 * 5 + 8 * 3 + 2], DType::bf16);
  }));
  expect_first(result, "layer 1 attn.q_rope", 0, 0, Verdict::introduced);
  EXPECT_EQ(result.findings.size(), 1u);
  EXPECT_EQ(result.first->position, 5);
  EXPECT_EQ(result.first->index, (std::vector<int64_t>{5, 3, 2}));
  EXPECT_EQ(result.first->statistic, StatisticKind::max_error);
  EXPECT_GT(result.first->budgets, 2);
  ASSERT_EQ(flags_.size(), 1u);
  EXPECT_EQ(flags_[0].request, 0);
}

TEST_F(JudgeTest, EveryPlaceNamesItself) {
  for (const Place& place : oracle_.graph().places()) {
    if (place.point->is_cache() || place.point->op == OpKind::argmax) continue;
    const Result result =
        judged(spoilt(place.point->name, place.layer, 1,
                      [](std::vector<double>& v) { v.back() += std::abs(v.back()) + 1; }));
    expect_first(result, text_of(place), 1, 1, Verdict::introduced);
    EXPECT_EQ(result.findings.size(), 1u) << result.story;
  }
}

TEST_F(JudgeTest, AChangedBitOfACopyIsT0) {
  for (const char* name : {"attn.residual", "mlp.residual"}) {
    const Result result = judged(
        spoilt(name, 0, 2, [](std::vector<double>& v) { v[3] += 2 * ulp(v[3], DType::bf16); }));
    expect_first(result, std::string("layer 0 ") + name, 2, 0, Verdict::introduced);
    EXPECT_EQ(result.first->statistic, StatisticKind::bits);
    EXPECT_EQ(result.first->value, 1);
  }
}

TEST_F(JudgeTest, WhatComesAfterIsPropagatedAndNamesItsAncestor) {
  const Result result = judged(spoilt("attn.v", 0, 0, [](std::vector<double>& v) {
    for (double& x : v) x = -2 * x;
  }));
  expect_first(result, "layer 0 attn.v", 0, 0, Verdict::introduced);
  EXPECT_EQ(result.findings.size(), 2u);  // of both requests
  EXPECT_GT(count(result, Verdict::propagated), 20);
  EXPECT_EQ(result.judged, result.expected);
  bool later = false;
  for (const PlaceSummary& p : result.places) {
    if (p.place.layer == 0 && p.place.point->name == "attn.q") {
      EXPECT_EQ(p.verdict, Verdict::bitwise);
    }
    if (p.verdict != Verdict::propagated) continue;
    EXPECT_EQ(p.ancestor, "layer 0 attn.v");
    EXPECT_GT(p.propagated_rms, 0);
    later = later || p.place.layer == 1;
  }
  EXPECT_TRUE(later);
  // Of a later pass only through what the cache holds.
  EXPECT_NE(result.story.find("pass an error on"), std::string::npos) << result.story;
}

TEST_F(JudgeTest, WithoutModelsNothingIsPropagated) {
  const FakeRun run = spoilt("attn.v", 0, 0, [](std::vector<double>& v) { v[0] += 9; });
  const Result result = judged(run, false);
  expect_first(result, "layer 0 attn.v", 0, 0, Verdict::introduced);
  EXPECT_EQ(count(result, Verdict::propagated), 0);
  EXPECT_FALSE(result.logits);
}

// A product that is 2.5e-6 too large, as much as the budget of its accumulation allows at least,
// makes a few elements of a node a neighbour of what they should be, and hundreds of a run.
FakeRun slightly_large(const Spoil& more = {}) {
  FakeModel model(DType::f16, [=](const Place& p, const PassInfo& info, std::vector<double>& v) {
    if (p.point->name == "mlp.gate" && p.layer == 1)
      for (double& x : v) x *= 1 + 2.5e-6;
    if (more) more(p, info, v);
  });
  return fake_run(model, DType::f16, 1, {220, 210, 200});
}

// Limits so wide that a store may truncate: that it does is noted, unless the place is wrong
// anyway.
TEST_F(JudgeTest, AnOffsetIsNotedWhereNoFindingStands) {
  const auto notes_of = [&](bool nan) {
    FakeModel model(DType::bf16, [=](const Place& p, const PassInfo& info, std::vector<double>& v) {
      if (p.point->name != "mlp.gate" || p.layer != 1) return;
      for (double& x : v) x -= 0.5 * ulp(x, DType::bf16);
      if (nan && info.pass == 1) v[3] = std::numeric_limits<double>::quiet_NaN();
    });
    const Result result = judged(fake_run(model, DType::bf16), false, {.limit_scale = 1e4});
    EXPECT_EQ(result.findings.size(), nan ? 1u : 0u) << result.story;
    return std::ranges::count_if(result.notes, [](const std::string& note) {
      return note.find("layer 1 mlp.gate") != note.npos && note.find("(T6)") != note.npos;
    });
  };
  EXPECT_EQ(notes_of(/*nan=*/false), 1);
  EXPECT_EQ(notes_of(/*nan=*/true), 0);
}

TEST_F(JudgeTest, WhatNoNodeShowsTheNodesOfAPlaceShowTogether) {
  const Result result = judged(slightly_large(), false);
  expect_first(result, "layer 1 mlp.gate", 0, 0, Verdict::introduced);
  ASSERT_EQ(result.findings.size(), 1u) << result.story;
  EXPECT_EQ(result.first->statistic, StatisticKind::gain);
  EXPECT_TRUE(result.first->index.empty());
  EXPECT_NE(result.story.find("all passes together"), std::string::npos) << result.story;
  EXPECT_EQ(count(result, Verdict::introduced), 1);
  EXPECT_EQ(result.judged, result.expected);
}

// A gain of all layers shows in one of them first, where an element happens to be over its budget;
// the others have too few rows to be asked for a gain alone. None is known of a layer without it.
TEST_F(JudgeTest, AGainOfAllLayersIsNamedFromTheFirstOn) {
  constexpr double kGain = 2.8e-7;
  const auto findings = [this](double of_layer_0) {
    FakeModel model(DType::f32, [=](const Place& p, const PassInfo& info, std::vector<double>& v) {
      if (p.point->name != "mlp.gate") return;
      for (double& x : v) x *= 1 + (p.layer == 0 ? of_layer_0 : kGain);
      if (p.layer == 1 && info.pass == 0) v[0] += 8;
    });
    return judged(fake_run(model, DType::f32, 1, {20, 16}), false);
  };
  const Result wrong = findings(kGain);
  ASSERT_EQ(wrong.findings.size(), 2u) << wrong.story;
  expect_first(wrong, "layer 0 mlp.gate", 0, 0, Verdict::introduced);
  EXPECT_EQ(wrong.first->statistic, StatisticKind::gain);
  const Result right = findings(0);
  ASSERT_EQ(right.findings.size(), 1u) << right.story;
  expect_first(right, "layer 1 mlp.gate", 0, 0, Verdict::introduced);
}

TEST_F(JudgeTest, APooledFindingDoesNotDisplaceOneThatCameEarlier) {
  const auto spoilt_at = [](const char* name, int layer, int pass) -> Spoil {
    return [=](const Place& p, const PassInfo& info, std::vector<double>& v) {
      if (p.point->name == name && p.layer == layer && info.pass == pass) v[0] += 8;
    };
  };
  const Result result = judged(slightly_large(spoilt_at("mlp.up", 0, 0)), false);
  expect_first(result, "layer 0 mlp.up", 0, 0, Verdict::introduced);
  ASSERT_EQ(result.findings.size(), 2u);
  EXPECT_EQ(text_of(result.findings[1].node.place), "layer 1 mlp.gate");

  // A place that has a finding of its own gets no second one.
  const Result one = judged(slightly_large(spoilt_at("mlp.gate", 1, 1)), false);
  expect_first(one, "layer 1 mlp.gate", 1, 0, Verdict::introduced);
  EXPECT_EQ(one.findings.size(), 1u);
}

TEST_F(JudgeTest, SeveralBugsAreAllFoundInGraphOrder) {
  FakeModel model(DType::bf16, [](const Place& p, const PassInfo& info, std::vector<double>& v) {
    if (p.point->name == "mlp.up" && p.layer == 1) v[1] += 8;
    if (p.point->name == "attn.k_norm" && p.layer == 0 && info.pass == 1) v[0] += 4;
    if (p.point->name == "logits") v[kVocab - 1] += 3;
  });
  const Result result = judged(fake_run(model, DType::bf16));
  ASSERT_EQ(result.findings.size(), 7u) << result.story;
  expect_first(result, "layer 1 mlp.up", 0, 0, Verdict::introduced);
  EXPECT_EQ(text_of(result.findings[1].node.place), "logits");
  EXPECT_EQ(text_of(result.findings[2].node.place), "layer 0 attn.k_norm");
  EXPECT_EQ(result.findings[2].node.pass, 1);
}

TEST_F(JudgeTest, ARowOfAnotherRequestIsTracedToItsWriter) {
  FakeModel model(DType::bf16);
  model.before_reading = [](FakeModel& m, int layer) {
    if (layer == 1) m.lane(1, 1)[7] = m.lane(1, 0)[5];
  };
  FakeRun run = fake_run(model, DType::bf16);
  for (int hashes_only = 0; hashes_only < 2; ++hashes_only) {
    if (hashes_only)
      for (Pass& pass : run.passes)
        for (RecordedTensor& t : pass.tensors)
          if (t.point->is_cache()) t.data = {};
    const Result result = judged(run);
    expect_first(result, "layer 1 attn.kv", 0, 1, Verdict::introduced);
    EXPECT_NE(result.story.find("position 7 of request 1 reads K and V that request 0 position 5 "
                                "wrote"),
              std::string::npos)
        << result.story;
    // Attention is judged on what was read, so it is not to blame.
    for (const Finding& f : result.findings) EXPECT_EQ(f.node.place.point->op, OpKind::cache);
    EXPECT_EQ(count(result, Verdict::inconclusive), 0);
  }
}

TEST_F(JudgeTest, RowsThatNobodyWroteAreSaidSo) {
  FakeModel model(DType::bf16);
  model.before_reading = [](FakeModel& m, int layer) {
    if (layer == 0) m.lane(0, 0)[2][1][0] = 77;
  };
  FakeRun run = fake_run(model, DType::bf16);
  Result result = judged(run);
  expect_first(result, "layer 0 attn.kv", 0, 0, Verdict::introduced);
  EXPECT_NE(result.story.find("nobody wrote"), std::string::npos) << result.story;
  EXPECT_EQ(result.first->index, (std::vector<int64_t>{2, 1, 0, 0}));
  EXPECT_EQ(result.first->got, 77);
  // By hashes alone the input of attention is lost.
  for (Pass& pass : run.passes)
    for (RecordedTensor& t : pass.tensors)
      if (t.point->is_cache()) t.data = {};
  result = judged(run);
  expect_first(result, "layer 0 attn.kv", 0, 0, Verdict::introduced);
  EXPECT_GT(count(result, Verdict::inconclusive), 0);
}

TEST_F(JudgeTest, AWrongTokenIsIntroducedAndATieIsNot) {
  FakeRun run = clean();
  RecordedTensor& token = tensor(run.passes[2], "token", -1);
  const RecordedTensor& logits = tensor(run.passes[2], "logits", -1);
  auto* ids = token.data.as<int32_t>();
  const int32_t right = ids[0];
  ids[0] = (right + 1) % static_cast<int32_t>(kVocab);
  expect_first(judged(run), "token", 2, 0, Verdict::introduced);
  ids[0] = -1;
  expect_first(judged(run), "token", 2, 0, Verdict::introduced);
  ids[0] = static_cast<int32_t>(kVocab);
  expect_first(judged(run), "token", 2, 0, Verdict::introduced);
  // Two equal largest logits: either is right.
  ids[0] = (right + 1) % static_cast<int32_t>(kVocab);
  auto* values = logits.data.as<BFloat16>();
  values[ids[0]] = values[right];
  run.requests[0].tokens.back() = run.requests[0].argmax.back() = ids[0];
  put_top_logits(run.passes[2]);
  const Result tie = judged(run);
  for (const Finding& f : tie.findings) EXPECT_NE(text_of(f.node.place), "token") << f.rule;
}

TEST_F(JudgeTest, NonFiniteIsIntroducedOnceAndThenPropagated) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Result result =
      judged(spoilt("mlp.down", 0, 1, [&](std::vector<double>& v) { v[4] = nan; }));
  expect_first(result, "layer 0 mlp.down", 1, 0, Verdict::nonfinite);
  EXPECT_NE(result.first->rule.find("introduced"), std::string::npos);
  // Whatever it reaches is wrong by it, and no finding.
  EXPECT_EQ(result.findings.size(), 1u) << result.story;
  EXPECT_GT(result.counts[Verdict::propagated], 10);
}

TEST_F(JudgeTest, LimitsTimesZeroFailEveryInexactNode) {
  const Result result = judged(clean(), true, {.limit_scale = 0});
  EXPECT_EQ(result.verdict, RunVerdict::diverged);
  EXPECT_EQ(exit_status(result), 1);
  // All but embed, attn.kv, two residuals a layer and the token.
  EXPECT_EQ(count(result, Verdict::introduced), kNodes - 3 * 2 * (1 + 2 * 3 + 1));
}

TEST_F(JudgeTest, AnotherDtypeThanDeclaredIsStructural) {
  FakeRun run = clean(DType::f16);
  run.manifest.dtype = DType::bf16;
  const Result result = judged(run);
  EXPECT_NE(exit_status(result), 0);
  EXPECT_GT(count(result, Verdict::structural), 0);
  EXPECT_NE(result.findings.at(0).rule.find("dtype bf16 was wanted, found fp16"),
            std::string::npos);

  // And numbers of one dtype in the clothes of another.
  run = clean(DType::bf16);
  run.manifest.dtype = DType::f32;
  for (Pass& pass : run.passes)
    for (RecordedTensor& t : pass.tensors) {
      if (t.dtype != DType::bf16) continue;
      t.data = rounded_tensor(values_of(t.data), t.shape, DType::f32);
      t.dtype = DType::f32;
      t.row_hashes = row_hashes_of(t.data);
    }
  const Result worse = judged(run);
  EXPECT_EQ(worse.verdict, RunVerdict::diverged);
  EXPECT_EQ(text_of(worse.first->node.place), "layer 0 attn.norm") << worse.story;
}

TEST_F(JudgeTest, MissingDuplicateRenamedAndMisshapenTensorsAreStructural) {
  FakeRun run = clean();
  std::erase_if(run.passes[1].tensors,
                [](const RecordedTensor& t) { return t.point->name == "mlp.act" && t.layer == 1; });
  Result result = judged(run);
  expect_first(result, "layer 1 mlp.act", 1, 0, Verdict::structural);
  EXPECT_EQ(count(result, Verdict::structural), 2);
  EXPECT_EQ(count(result, Verdict::inconclusive), 2);  // mlp.down, which reads it
  EXPECT_EQ(result.judged, kNodes - 4);

  run = clean();
  run.passes[0].tensors.push_back(tensor(run.passes[0], "attn.q", 0));
  expect_first(judged(run), "layer 0 attn.q", 0, 0, Verdict::structural);

  run = clean();  // a renamed point: one place has none, another two
  tensor(run.passes[0], "attn.o", 0).point = &point("mlp.norm");
  result = judged(run);
  expect_first(result, "layer 0 attn.o", 0, 0, Verdict::structural);
  EXPECT_EQ(count(result, Verdict::structural), 4);

  run = clean();  // a layer that the model does not have
  tensor(run.passes[0], "mlp.down", 1).layer = 7;
  result = judged(run);
  EXPECT_EQ(result.verdict, RunVerdict::diverged);
  EXPECT_EQ(count(result, Verdict::structural), 2);
  EXPECT_EQ(result.findings.size(), 3u);  // and the stray one

  run = clean();
  RecordedTensor& up = tensor(run.passes[0], "mlp.up", 0);
  up.data = rounded_tensor(std::vector<double>(22 * 40, 1.0), {22, 40}, DType::bf16);
  up.shape = {22, 40};
  result = judged(run);
  expect_first(result, "layer 0 mlp.up", 0, 0, Verdict::structural);
  EXPECT_NE(result.story.find("[22, 48]"), std::string::npos) << result.story;
}

TEST_F(JudgeTest, RowsOfAnotherPassAreStructural) {
  FakeRun run = clean();
  tensor(run.passes[1], "mlp.gate", 0).rows[0].position += 1;
  expect_first(judged(run), "layer 0 mlp.gate", 1, 0, Verdict::structural);
  run = clean();
  tensor(run.passes[1], "mlp.gate", 0).rows[1].request = 5;
  expect_first(judged(run), "layer 0 mlp.gate", 1, 0, Verdict::structural);
}

TEST_F(JudgeTest, TokensMustBeThosePromptedForcedOrChosen) {
  FakeRun run = clean();
  run.requests[1].prompt[2] += 1;
  Result result = judged(run);
  expect_first(result, "embed", 0, 1, Verdict::structural);
  EXPECT_EQ(result.first->position, 2);
  EXPECT_EQ(count(result, Verdict::structural), 1);

  // The token of pass 0 changes after the fact: what pass 1 was fed is not what was chosen.
  run = clean();
  const int32_t fed = run.passes[1].info.rows[0].token;
  tensor(run.passes[0], "token", -1).data.as<int32_t>()[0] = fed == 0 ? 1 : 0;
  result = judged(run);
  bool found = false;
  for (const Finding& f : result.findings)
    found = found || (f.node.place.point->name == "embed" && f.node.pass == 1 && f.position == 13);
  EXPECT_TRUE(found) << result.story;

  // Unless it was forced.
  run.requests[0].forced = {fed};
  result = judged(run);
  for (const Finding& f : result.findings) EXPECT_NE(f.node.place.point->name, "embed");
}

TEST_F(JudgeTest, DrawnTokensAreThoseTheEngineSaysItDrew) {
  FakeRun run = clean();
  const int32_t fed = run.passes[1].info.rows[0].token;
  tensor(run.passes[0], "token", -1).data.as<int32_t>()[0] = fed == 0 ? 1 : 0;
  run.requests[0].sampled = true;
  for (const Finding& f : judged(run).findings) EXPECT_NE(f.node.place.point->name, "embed");

  run.requests[0].tokens[0] = fed + 1;
  bool found = false;
  for (const Finding& f : judged(run).findings)
    found = found || (f.node.place.point->name == "embed" && f.node.pass == 1 && f.position == 13);
  EXPECT_TRUE(found);

  // Of a run that was cut off it is not known what was drawn.
  run.requests[0].tokens.clear();
  for (const Finding& f : judged(run).findings) EXPECT_NE(f.node.place.point->name, "embed");
}

TEST_F(JudgeTest, PositionsMustContinue) {
  FakeRun run = clean();
  run.passes.erase(run.passes.begin() + 1);
  const Result result = judged(run);
  expect_first(result, "embed", 2, 0, Verdict::structural);
  EXPECT_NE(result.story.find("position 13 of request 0 was next, found 14"), std::string::npos)
      << result.story;
}

TEST_F(JudgeTest, DigestsOnlyAreInconclusive) {
  FakeRun run = clean();
  for (Pass& pass : run.passes)
    for (RecordedTensor& t : pass.tensors) t.data = {};
  const Result nothing = judged(run);
  EXPECT_EQ(nothing.verdict, RunVerdict::inconclusive);
  EXPECT_EQ(exit_status(nothing), 2);
  EXPECT_EQ(nothing.judged, 0);

  run = clean();
  tensor(run.passes[0], "mlp.norm", 1).data = {};
  const Result some = judged(run);
  EXPECT_EQ(some.verdict, RunVerdict::inconclusive);
  EXPECT_EQ(count(some, Verdict::inconclusive), 2 * 3);  // it, and gate and up, which read it
  EXPECT_EQ(some.judged, kNodes - 6);
}

TEST_F(JudgeTest, AnIncompleteTraceIsInconclusiveAtBest) {
  const Result result = judged(clean(), true, {}, false);
  EXPECT_EQ(result.verdict, RunVerdict::inconclusive);
  EXPECT_EQ(exit_status(result), 2);
  const FakeRun bad = spoilt("mlp.up", 0, 0, [](std::vector<double>& v) { v[0] += 8; });
  EXPECT_EQ(judged(bad, true, {}, false).verdict, RunVerdict::diverged);
}

TEST(Story, ShowsAsManyDigitsAsTellNumbersApart) {
  const auto said = [](double want, double got) {
    return text_of(Finding{.node = {.place = {&point("mlp.up"), 0}},
                           .verdict = Verdict::introduced,
                           .index = {0, 0},
                           .want = want,
                           .got = got});
  };
  EXPECT_NE(said(0.5, -2).find("want 0.5, got -2"), std::string::npos) << said(0.5, -2);
  const float third = 1.0F / 3, next = std::nextafter(third, 1.0F);
  EXPECT_NE(said(third, next).find("want 0.3333333, got 0.3333334"), std::string::npos)
      << said(third, next);
  EXPECT_EQ(digits_apart(third, third), 6);
  EXPECT_EQ(digits_apart(std::nan(""), 1), 6);
}

TEST_F(JudgeTest, NothingComparedIsTrouble) {
  FakeRun run = clean();
  const Result none = judged(run, true, {.selection = Selection("", "", "", "9")});
  EXPECT_EQ(none.expected, 0);
  EXPECT_EQ(none.verdict, RunVerdict::inconclusive);
  EXPECT_EQ(exit_status(none), 2);
  EXPECT_NE(none.story.find("no pass has any of --requests 9, so widen"), std::string::npos)
      << none.story;
  run.passes.clear();
  const Result empty = judged(run);
  EXPECT_EQ(exit_status(empty), 2);
  EXPECT_NE(empty.story.find("0 nodes were expected"), std::string::npos) << empty.story;
}

TEST_F(JudgeTest, ASelectionLimitsWhatIsExpected) {
  const FakeRun run = spoilt("mlp.up", 0, 0, [](std::vector<double>& v) { v[0] += 8; });
  const Result attn = judged(run, true, {.selection = Selection("attn.*", "1", "", "")});
  EXPECT_EQ(attn.expected, 3 * 2 * 12);
  EXPECT_EQ(attn.judged, attn.expected);
  EXPECT_EQ(attn.verdict, RunVerdict::clean) << attn.story;
  const Result rows = judged(run, true, {.selection = Selection("", "", "3-5", "0")});
  EXPECT_EQ(rows.expected, 1 + 2 * 18 + 1);  // prefill only, and no row with logits
  EXPECT_EQ(rows.judged, rows.expected);
}

TEST_F(JudgeTest, ATraceOfAnotherModelIsRefused) {
  FakeRun run = clean();
  run.manifest.graph = qwen_graph({3, true});
  EXPECT_NE(error_of([&] { judged(run); }).find("3 layers"), std::string::npos);
}

TEST_F(JudgeTest, OneRequestAloneIsJudgedAsInABatch) {
  FakeModel model(DType::bf16);
  const FakeRun run = fake_run(model, DType::bf16, 0, {1});
  const Result result = judged(run);
  EXPECT_EQ(result.verdict, RunVerdict::clean) << result.story;
  EXPECT_EQ(result.expected, kNodes / 6);
  bool blind = false;
  for (const std::string& text : result.blind)
    blind = blind || text.find("position 0") != std::string::npos;
  EXPECT_TRUE(blind);
}

// Logits that hold no number are of any dtype, and no reason to say that theirs is another one.
TEST_F(JudgeTest, LogitsWithoutANumberAreOfTheDtypeThatTheyHad) {
  const auto wrong_dtypes = [&](double factor, size_t without_number) {
    FakeRun run = clean(DType::f16);
    for (size_t i = 0; i < run.passes.size(); ++i) {
      RecordedTensor& logits = tensor(run.passes[i], "logits", -1);
      std::vector<double> values = values_of(logits.data);
      for (double& x : values) x = i == without_number ? std::nan("") : x * factor;
      logits.data = rounded_tensor(values, logits.shape, DType::f32);
      logits.dtype = DType::f32;
      logits.row_hashes = row_hashes_of(logits.data);
    }
    const Result result = judged(run, false);
    return std::ranges::count_if(result.findings, [](const Finding& f) {
      return f.rule.find("was wanted, found") != std::string::npos;
    });
  };
  const double between = 1 + 0x1p-20;  // which no number of 16 bits is
  EXPECT_EQ(wrong_dtypes(between, 2), 0);
  EXPECT_EQ(wrong_dtypes(1, 0), 0) << "all of fp16, in wider clothes";
  EXPECT_EQ(wrong_dtypes(1, 2), 0);
}

}  // namespace
}  // namespace lockstep
