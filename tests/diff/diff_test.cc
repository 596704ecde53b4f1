#include "src/diff/diff.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/judge/ledger.h"
#include "src/report/output.h"
#include "src/report/report.h"
#include "src/weights/qwen_graph.h"
#include "tests/diff/diff_runs.h"

namespace lockstep {
namespace {

void forget_data(FakeRun& run) {
  for (Pass& pass : run.passes)
    for (RecordedTensor& t : pass.tensors) t.data = {};
}

TEST(Diff, ATraceIsIdenticalToItself) {
  const DiffResult r = diff_of(run_of(), run_of());
  EXPECT_EQ(r.verdict, DiffResult::Verdict::identical) << r.story;
  EXPECT_EQ(exit_status(r), 0);
  EXPECT_EQ(r.rows, r.equal);
  EXPECT_GT(r.rows, 500);
  EXPECT_FALSE(r.first_bits);
}

TEST(Diff, HashesAloneSayIdentical) {
  FakeRun a = run_of(), b = run_of();
  forget_data(a);
  forget_data(b);
  EXPECT_EQ(diff_of(a, b).verdict, DiffResult::Verdict::identical);
}

TEST(Diff, RoundingTheOtherWayNowAndThenIsNoise) {
  int n = 0;
  const DiffResult r = diff_of(
      run_of(), run_of(DType::bf16, [&](const Place& p, const PassInfo&, std::vector<double>& v) {
        if (p.point->node_class == NodeClass::exact) return;
        for (double& x : v)
          if (n++ % 997 == 7) x += ulp(x, DType::bf16);
      }));
  ASSERT_TRUE(r.first_bits);
  EXPECT_EQ(text_of(r.first_bits->id.place), "layer 0 attn.norm");
  EXPECT_FALSE(r.first_kind) << r.story;
}

TEST(Diff, ABugIsNamedAndItsTailIsNot) {
  const auto bug = [](std::vector<double>& v) {
    for (size_t i = 0; i < v.size(); i += 3) v[i] = -v[i];
  };
  const DiffResult r = diff_of(run_of(), run_of(DType::bf16, spoil_at("attn.k_norm", 1, bug)));
  EXPECT_EQ(r.verdict, DiffResult::Verdict::different);
  EXPECT_EQ(exit_status(r), 1);
  ASSERT_TRUE(r.first_kind) << r.story;
  EXPECT_EQ(text_of(r.first_kind->id.place), "layer 1 attn.k_norm");
  EXPECT_GT(r.first_kind->relative, r.first_kind->limit);
  EXPECT_TRUE(r.first_kind->measured);
  EXPECT_NE(r.story.find("layer 1 attn.k_norm"), std::string::npos);
}

TEST(Diff, DigestsBoundADifferenceFromBelow) {
  FakeRun a = run_of();
  FakeRun b = run_of(DType::bf16, spoil_at("mlp.act", 0, [](std::vector<double>& v) {
                       for (double& x : v) x *= 1.5;
                     }));
  forget_data(a);
  forget_data(b);
  const DiffResult r = diff_of(a, b);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::different);
  ASSERT_TRUE(r.first_kind) << r.story;
  EXPECT_EQ(text_of(r.first_kind->id.place), "layer 0 mlp.act");
  EXPECT_FALSE(r.first_kind->measured);
  EXPECT_NEAR(r.first_kind->relative, 0.5, 0.02);
  EXPECT_GT(r.unmeasured, 0);
  EXPECT_EQ(r.first_kind->requests, 2) << "a digest does not say which of them";
  EXPECT_NE(r.story.find("or more over 2 requests together"), std::string::npos) << r.story;
}

// A digest is of all rows of a pass.
TEST(Diff, DigestsBlameNoRowThatIsNotAsked) {
  FakeRun a = run_of();
  FakeRun b = run_of(DType::bf16, spoil_at("mlp.act", 0, [](std::vector<double>& v) {
                       // Those of request 1 in the first pass: it has 13 and 9 rows.
                       if (v.size() % 22 == 0)
                         for (size_t i = v.size() / 22 * 13; i < v.size(); ++i) v[i] *= 1.5;
                     }));
  forget_data(a);
  forget_data(b);
  DiffResult r = diff_of(a, b);
  ASSERT_TRUE(r.first_kind) << r.story;
  EXPECT_EQ(r.first_kind->id.request, 1);
  EXPECT_EQ(r.first_kind->requests, 1) << "the rows of the other have the same bits";
  r = diff_of(a, b, Selection("mlp.act", "0", "13", ""));
  EXPECT_FALSE(r.first_kind) << r.story;
  b.passes[0].info.rows[13].token += 1;
  r = diff_of(a, b);
  EXPECT_FALSE(r.first_kind) << r.story;
  EXPECT_EQ(r.story.find("request 1 was fed token"), 0u) << r.story;
}

FakeRun negated_gates() {
  FakeRun run = run_of(DType::bf16, spoil_at("mlp.gate", 0, [](std::vector<double>& v) {
                         for (double& x : v) x = -x;
                       }));
  forget_data(run);
  return run;
}

// A bug that leaves the rms alone has no bound: what comes after it is not the first.
TEST(Diff, LeadsWithTheFirstOtherBitsAndNotWithWhatTellsThatTheyAreNoNoise) {
  FakeRun a = run_of(), b = negated_gates();
  forget_data(a);
  for (FakeRun* run : {&a, &b}) run->manifest.contracts.clear();
  const DiffResult r = diff_of(a, b);
  ASSERT_TRUE(r.first_kind) << r.story;
  EXPECT_EQ(text_of(r.first_kind->id.place), "layer 0 mlp.act");
  EXPECT_EQ(r.unmeasured_before, 22);
  EXPECT_EQ(r.story.find("layer 0 mlp.gate, request 0, position 0 has the first other bits, and by "
                         "layer 0 mlp.act"),
            0u)
      << r.story;
  EXPECT_NE(r.story.find("--keep full tells"), std::string::npos) << r.story;
}

TEST(Diff, CountsTheRowsThatDifferThoughTheirInputsDoNot) {
  FakeRun a = run_of();
  forget_data(a);
  const DiffResult r = diff_of(a, negated_gates());
  ASSERT_TRUE(r.first_kind) << r.story;
  EXPECT_EQ(text_of(r.first_kind->id.place), "layer 0 mlp.gate");
  ASSERT_TRUE(r.first_kind->share);
  EXPECT_TRUE(r.first_kind->share->of_rows);
  EXPECT_EQ(r.first_kind->share->different, r.first_kind->share->of);
  EXPECT_NE(r.story.find("rows (100 %) have other bits though the inputs have the same"),
            std::string::npos)
      << r.story;
}

TEST(Diff, WhatNoiseExplainsDoesNotDependOnTheSelection) {
  FakeRun b = run_of(DType::bf16, [](const Place& p, const PassInfo&, std::vector<double>& v) {
    const double step = p.point->name == "attn.norm" ? 1.006 : p.point->name == "attn.v" ? 1.03 : 1;
    for (double& x : v) x *= step;
  });
  b.manifest.contracts.clear();  // then it need not be the same op
  const DiffResult whole = diff_of(run_of(), b, Selection("", "0", "", ""));
  const DiffResult v = diff_of(run_of(), b, Selection("attn.v", "0", "", ""));
  EXPECT_EQ(whole.verdict, DiffResult::Verdict::noise) << whole.story;
  EXPECT_EQ(v.verdict, DiffResult::Verdict::noise) << v.story;
  EXPECT_EQ(v.rows, 26) << "of what is asked for alone";
  ASSERT_EQ(v.places.size(), 1u);
  EXPECT_EQ(text_of(v.places[0].place), "layer 0 attn.v");
}

// Of a cache hashes alone are kept: how far apart it is, what was written says.
// Behind the bug all is as far apart as its inputs, which a selection does not show.
TEST(Diff, WhatDiffersBeforeTheSelectionIsNoNoiseOfIt) {
  const FakeRun a = run_of();
  const FakeRun bug = run_of(DType::bf16, spoil_at("mlp.act", 0, [](std::vector<double>& v) {
                               for (double& x : v) x *= 1.5;
                             }));
  const FakeRun nan = run_of(DType::bf16, spoil_at("mlp.gate", 0, [](std::vector<double>& v) {
                               v[1] = std::numeric_limits<double>::quiet_NaN();
                             }));
  for (const Selection& selection : {Selection("logits", "", "", ""), Selection("", "1", "", ""),
                                     Selection("attn.v", "1", "", "")})
    for (const FakeRun* b : {&bug, &nan}) {
      const DiffResult r = diff_of(a, *b, selection);
      EXPECT_EQ(r.verdict, DiffResult::Verdict::different) << r.story;
      ASSERT_TRUE(r.first_kind && r.first_bits) << r.story;
      EXPECT_TRUE(r.kind_before);
      EXPECT_EQ(text_of(r.first_kind->id.place),
                b == &bug ? "layer 0 mlp.act" : "layer 0 mlp.gate");
      EXPECT_EQ(r.story.find("before what was selected, at layer 0 mlp."), 0u) << r.story;
    }
  // What lies before the bug has no part in it.
  EXPECT_FALSE(diff_of(a, bug, Selection("attn.v", "0", "", "")).first_kind);
  const DiffResult whole = diff_of(a, bug);
  EXPECT_FALSE(whole.kind_before);
}

TEST(Diff, ACacheWithoutNumbersIsAsFarApartAsWhatWasWritten) {
  FakeRun a = run_of();
  FakeRun b = run_of(DType::bf16, [](const Place& p, const PassInfo&, std::vector<double>& v) {
    // More than one op's noise, in small steps.
    const double step = p.layer != 0                   ? 1
                        : p.point->name == "attn.norm" ? 1.006
                        : p.point->name == "attn.v"    ? 1.04
                                                       : 1;
    for (double& x : v) x *= step;
  });
  for (FakeRun* run : {&a, &b})
    for (Pass& pass : run->passes)
      for (RecordedTensor& t : pass.tensors)
        if (t.point->is_cache()) t.data = {};
  b.manifest.contracts.clear();  // then it need not be the same op
  DiffResult r = diff_of(a, b);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::noise) << r.story;
  EXPECT_EQ(r.unmeasured, 0);
  // Also when they are not what is asked for.
  r = diff_of(a, b, Selection("attn.kv", "", "", ""));
  EXPECT_EQ(r.verdict, DiffResult::Verdict::noise) << r.story;
  // Without the numbers of what was written there are none for what is read.
  for (FakeRun* run : {&a, &b})
    for (Pass& pass : run->passes)
      std::erase_if(pass.tensors, [](const RecordedTensor& t) {
        return *t.point == point("attn.v") || *t.point == point("attn.k_rope");
      });
  r = diff_of(a, b, Selection("attn.kv", "", "", ""));
  EXPECT_EQ(r.verdict, DiffResult::Verdict::inconclusive);
  EXPECT_NE(r.story.find("was not kept: --keep full tells"), std::string::npos) << r.story;
  EXPECT_EQ(r.unmeasured, r.rows - r.equal);
  EXPECT_GT(r.unmeasured, 0);
}

TEST(Diff, NanOnOneSideIsDifferentInKind) {
  const DiffResult r = diff_of(
      run_of(), run_of(DType::bf16, spoil_at("mlp.down", 1,
                                             [](std::vector<double>& v) { v[0] = std::nan(""); })));
  ASSERT_TRUE(r.first_kind);
  EXPECT_EQ(text_of(r.first_kind->id.place), "layer 1 mlp.down");
}

TEST(Diff, OtherTokensEndTheComparisonOfTheirRequest) {
  FakeRun b = run_of();
  b.passes[1].info.rows[0].token += 1;
  const DiffResult r = diff_of(run_of(), b);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::different);
  ASSERT_EQ(r.structure.size(), 1u);
  EXPECT_NE(r.structure[0].find("request 0"), std::string::npos);
  EXPECT_NE(r.structure[0].find("position 13"), std::string::npos);
  EXPECT_EQ(r.rows, r.equal);
  EXPECT_EQ(r.only_a + r.only_b, 0);
}

TEST(Diff, AnotherShapeIsDifferentInKind) {
  FakeRun b = run_of();
  auto& up = const_cast<RecordedTensor&>(*b.passes[0].find(point("mlp.up"), 0));
  up.data = rounded_tensor(std::vector<double>(22 * 40, 1.0), {22, 40}, DType::bf16);
  up.shape = {22, 40};
  up.row_hashes = row_hashes_of(up.data);
  const DiffResult r = diff_of(run_of(), b);
  ASSERT_TRUE(r.first_kind);
  EXPECT_EQ(text_of(r.first_kind->id.place), "layer 0 mlp.up");
}

TEST(Diff, NothingInCommonIsInconclusive) {
  FakeRun a = run_of();
  const DiffResult none = diff_of(a, a, Selection("", "", "", "7"));
  EXPECT_EQ(none.rows, 0);
  EXPECT_EQ(exit_status(none), 2);
  MemoryTrace x(a), y(a, false);
  EXPECT_EQ(exit_status(diff(x, y, {})), 2);  // an incomplete one
}

// One request whose prompt goes through at once, or in chunks.
FakeRun chunked(const std::vector<int>& chunks) {
  FakeModel model(DType::bf16);
  FakeRun run;
  int32_t position = 0;
  for (int chunk : chunks) {
    PassInfo info{.pass = static_cast<int32_t>(run.passes.size())};
    for (int i = 0; i < chunk; ++i, ++position)
      info.rows.push_back({{0, position}, (position * 7) % 40, position, Phase::prefill});
    run.passes.push_back(pass_of(model, info));
  }
  return run;
}

TEST(Diff, ChunkingDoesNotMatter) {
  const DiffResult r = diff_of(chunked({11}), chunked({4, 1, 6}));
  EXPECT_EQ(r.verdict, DiffResult::Verdict::identical) << r.story;
  const DiffResult back = diff_of(chunked({4, 1, 6}), chunked({11}));
  EXPECT_EQ(back.verdict, DiffResult::Verdict::identical) << back.story;
  // What the cache holds after each chunk is compared too, whichever trace has the chunks.
  EXPECT_EQ(r.rows, diff_of(chunked({11}), chunked({11})).rows + 2 * (4 + 5));
  EXPECT_EQ(r.rows, back.rows);
}

// One request. Each pass computes the positions from `first` up to `last`, which gets logits.
FakeRun computed(const std::vector<std::pair<int, int>>& passes, Spoil spoil = {}) {
  FakeModel model(DType::bf16, std::move(spoil));
  FakeRun run;
  for (const auto& [first, last] : passes) {
    PassInfo info{.pass = static_cast<int32_t>(run.passes.size())};
    for (int32_t p = first; p <= last; ++p) info.rows.push_back({{0, p}, (p * 7) % 40, p});
    info.logit_rows = {last - first};
    run.passes.push_back(pass_of(model, info));
  }
  return run;
}

TEST(Diff, RowsThatWereComputedAgainAreThoseOfTheFirstTime) {
  const FakeRun once = computed({{0, 4}, {5, 5}, {6, 6}, {7, 7}});
  const FakeRun again = computed({{0, 4}, {5, 5}, {0, 6}, {7, 7}});
  const FakeRun later = computed({{0, 4}, {5, 5}, {6, 6}, {0, 7}});
  for (const FakeRun* a : {&once, &again, &later})
    for (const FakeRun* b : {&once, &again, &later}) {
      const DiffResult r = diff_of(*a, *b);
      EXPECT_EQ(r.verdict, DiffResult::Verdict::identical) << r.story;
    }
}

TEST(Diff, EveryTimeThatARowWasComputedIsCompared) {
  const std::vector<std::pair<int, int>> passes{{0, 4}, {5, 5}, {0, 6}, {7, 7}};
  const FakeRun once = computed({{0, 4}, {5, 5}, {6, 6}, {7, 7}}), again = computed(passes);
  for (const int32_t wrong : {0, 2}) {
    const FakeRun spoilt =
        computed(passes, [&](const Place& p, const PassInfo& pass, std::vector<double>& v) {
          if (*p.point == point("mlp.up") && p.layer == 1 && pass.pass == wrong) v[0] += 100;
        });
    for (const FakeRun* right : {&once, &again}) {
      for (const DiffResult& r : {diff_of(*right, spoilt), diff_of(spoilt, *right)}) {
        ASSERT_TRUE(r.first_kind) << wrong << r.story;
        EXPECT_EQ(text_of(r.first_kind->id.place), "layer 1 mlp.up");
      }
    }
  }
}

// Takes one request's rows out of a tensor.
void forget_rows(RecordedTensor& t, int32_t request) {
  std::vector<Row> rows;
  std::vector<uint64_t> hashes;
  for (size_t i = 0; i < t.rows.size(); ++i)
    if (t.rows[i].request != request) rows.push_back(t.rows[i]), hashes.push_back(t.row_hashes[i]);
  t.rows = rows, t.row_hashes = hashes, t.data = {};
  std::vector<int64_t> extents(t.shape.extents().begin(), t.shape.extents().end());
  extents[0] = std::ssize(rows);
  t.shape = Shape(extents);
}

TEST(Diff, RowsThatOneTensorLacksAreCountedWhicheverTraceItIs) {
  FakeRun less = run_of();
  forget_rows(const_cast<RecordedTensor&>(*less.passes[0].find(point("attn.q"), 0)), 1);
  EXPECT_EQ(diff_of(run_of(), less).only_a, 9);
  EXPECT_EQ(diff_of(less, run_of()).only_b, 9);
  less = run_of();
  std::erase_if(less.passes[0].tensors, [](const RecordedTensor& t) {
    return *t.point == point("attn.kv") && t.layer == 1 && t.rows[0].request == 1;
  });
  EXPECT_EQ(diff_of(run_of(), less).only_a, 9);
  const DiffResult r = diff_of(less, run_of());
  EXPECT_EQ(r.only_b, 9);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::identical);
  less = run_of();
  for (RecordedTensor& t : less.passes[2].tensors) t.rows[0] = {0, 3};  // of no row of the pass
  less.passes[2].logits[0].row = {0, 3};
  EXPECT_EQ(diff_of(less, less).verdict, DiffResult::Verdict::inconclusive);
}

TEST(Diff, WhatReadsOtherThanWasWrittenIsNamedWithoutNumbers) {
  FakeModel model(DType::bf16);
  model.before_reading = [](FakeModel& m, int layer) {
    if (layer == 1) m.lane(1, 0)[2] = m.lane(1, 0)[1];
  };
  FakeRun a = run_of(), b = fake_run(model, DType::bf16);
  for (const bool data : {true, false}) {
    if (!data) forget_data(a), forget_data(b);
    const DiffResult r = diff_of(a, b);
    ASSERT_TRUE(r.first_kind) << r.story;
    EXPECT_EQ(text_of(r.first_kind->id.place), "layer 1 attn.kv");
    EXPECT_EQ(r.first_kind->position, 2);
    EXPECT_NE(r.story.find("its inputs have the same bits"), std::string::npos) << r.story;
  }
}

TEST(Diff, AnExactOpHasNoNoise) {
  const DiffResult r = diff_of(
      run_of(), run_of(DType::bf16, spoil_at("attn.residual", 1, [](std::vector<double>& v) {
                         v[0] += ulp(v[0], DType::bf16);
                       })));
  ASSERT_TRUE(r.first_kind) << r.story;
  EXPECT_EQ(text_of(r.first_kind->id.place), "layer 1 attn.residual");
  EXPECT_EQ(r.first_kind->limit, 0);
}

// One pass of one row that shows scores and the indices that were made of them.
DiffResult diff_of_indices(const Point& scores, const Point& indices, int layer,
                           const std::vector<double>& scores_a, const std::vector<double>& a,
                           const std::vector<double>& scores_b, const std::vector<double>& b) {
  const auto run = [&](const std::vector<double>& of, const std::vector<double>& made) {
    FakeRun run{.manifest = {.graph = qwen_graph({1, false, {0}})}};
    Pass& pass = run.passes.emplace_back();
    pass.info.rows.push_back({{0, 0}, 5, 0});
    pass.info.logit_rows = {0};
    pass.tensors.push_back(kept(scores, layer, of, DType::f32));
    pass.tensors.push_back(kept(indices, layer, made, DType::i32));
    put_top_logits(pass);
    return run;
  };
  return diff_of(run(scores_a, a), run(scores_b, b));
}

TEST(Diff, IndicesAreComparedAsIndices) {
  const auto experts = [](const auto&... of) {
    return diff_of_indices(point("mlp.router"), point("mlp.experts"), 0, of...);
  };
  using Values = std::vector<double>;
  const Values scores{1, 3, 2.00001, 2}, near{1, 3, 2, 2.00001};
  EXPECT_EQ(experts(scores, Values{1, 2}, scores, Values{1, 2}).verdict,
            DiffResult::Verdict::identical);
  for (const Values& wrong : {Values{2, 1}, {1, 9}, {1, 1}, {1, -1}, {1, 3}}) {
    const DiffResult r = experts(scores, Values{1, 2}, scores, wrong);
    ASSERT_TRUE(r.first_kind) << wrong[1] << r.story;
    EXPECT_EQ(text_of(r.first_kind->id.place), "layer 0 mlp.experts");
  }
  for (const Values& wrong : {Values{3, 1}, {1, 9}, {1, 1}, {1, -1}, {1, 0}}) {
    const DiffResult r = experts(scores, Values{1, 2}, near, wrong);
    ASSERT_TRUE(r.first_kind) << wrong[1] << r.story;
    EXPECT_EQ(text_of(r.first_kind->id.place), "layer 0 mlp.experts");
  }
  const DiffResult flip = experts(scores, Values{1, 2}, near, Values{1, 3});
  EXPECT_FALSE(flip.first_kind) << flip.story;
  EXPECT_EQ(flip.verdict, DiffResult::Verdict::noise) << "a near tie";
  ASSERT_EQ(flip.flips.size(), 1u);
  EXPECT_EQ(flip.flips[0].cause, DiffResult::Flip::Cause::near_tie);
  EXPECT_EQ(flip.flips[0].layer, 0);
}

TEST(Diff, ATokenIsExactByItsLogits) {
  const auto token = [](const auto&... of) {
    return diff_of_indices(point("logits"), point("token"), -1, of...);
  };
  using Values = std::vector<double>;
  const Values logits{1, 2.00001, 2}, near{1, 2, 2.00001};
  EXPECT_EQ(token(logits, Values{1}, near, Values{2}).verdict, DiffResult::Verdict::noise);
  for (const auto& [of, wrong] : {std::pair(logits, 2), {logits, 0}, {near, 0}, {near, 9}}) {
    const DiffResult r = token(logits, Values{1}, of, Values{static_cast<double>(wrong)});
    ASSERT_TRUE(r.first_kind) << wrong << r.story;
    EXPECT_EQ(text_of(r.first_kind->id.place), "token");
  }
}

TEST(Diff, ATokenWithoutItsLogitsIsNoNoise) {
  FakeRun b = run_of();
  for (RecordedTensor& t : b.passes[2].tensors) {
    if (*t.point != point("token")) continue;
    t.data = rounded_tensor(std::vector<double>{1, 2}, {2}, DType::i32);
    t.row_hashes = row_hashes_of(t.data);
  }
  std::erase_if(b.passes[2].tensors,
                [](const RecordedTensor& t) { return *t.point == point("logits"); });
  const Selection selection("token", "", "", "");
  DiffResult r = diff_of(run_of(), b, selection);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::different)
      << "it is not the best of those that were kept";
  b.passes[2].logits.clear();
  r = diff_of(run_of(), b, selection);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::inconclusive) << r.story;
  EXPECT_GT(r.unmeasured, 0);
}

TEST(Diff, RefusesLayersThatAModelHasNot) {
  EXPECT_THROW(diff_of(run_of(), run_of(), Selection("", "2", "", "")), Error);
  EXPECT_EQ(diff_of(run_of(), run_of(), Selection("", "1", "", "")).verdict,
            DiffResult::Verdict::identical);
}

TEST(DiffReport, KeepsWhatIsNoNumber) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  DiffResult r = diff_of(run_of(), run_of());
  r.first_kind = {
      .id = {.place = {&point("embed"), -1}}, .relative = std::nan(""), .limit = -kInfinity};
  r.places[0].difference_rms = kInfinity;
  const auto json = nlohmann::json::parse(report_json(r));
  EXPECT_EQ(json["first_kind"]["relative"], "NaN");
  EXPECT_EQ(json["first_kind"]["limit"], "-Infinity");
  EXPECT_EQ(json["points"][0]["difference_rms"], "Infinity");
  EXPECT_NE(text_of(document_of(r), "csv").find(",Infinity,"), std::string::npos);
}

TEST(DiffReport, OfEveryFormat) {
  const DiffResult r = diff_of(
      run_of(),
      run_of(DType::bf16, spoil_at("mlp.up", 0, [](std::vector<double>& v) { v[0] += 100; })));
  const auto json = nlohmann::json::parse(report_json(r));
  EXPECT_EQ(json["format"], "lockstep-diff");
  EXPECT_EQ(json["first_kind"]["point"], "mlp.up");
  EXPECT_TRUE(json["first_kind"]["reason"].is_null());
  EXPECT_EQ(json["first_kind"]["requests"], 1);
  EXPECT_TRUE(json["logits"].is_object());
  EXPECT_EQ(json["rows"]["compared"], r.rows);
  EXPECT_EQ(json["rows"]["unmeasured_before_first_kind"], 0);
  const std::string table = text_of(document_of(r), "table"), csv = text_of(document_of(r), "csv");
  EXPECT_NE(table.find("layer 0 mlp.up"), std::string::npos);
  EXPECT_EQ(table.rfind("different: "), table.rfind('\n', table.size() - 2) + 1);
  EXPECT_EQ(std::ranges::count(csv, '\n'), std::ssize(r.places) + 1);
  const DiffResult same = diff_of(run_of(), run_of());
  EXPECT_NE(text_of(document_of(same), "table").find("\nidentical: all "), std::string::npos);
}

}  // namespace
}  // namespace lockstep
