// What is said of K and V that are not what was written: which of the two, whose, and the element.
#include "src/judge/cache_read.h"

#include <utility>

#include "src/judge/story.h"
#include "src/report/report.h"
#include "tests/judge/judge_fixture.h"

namespace lockstep {
namespace {

class CacheReadTest : public JudgeTest {
 protected:
  // A run in which what is read of that layer is changed before each pass reads it.
  static FakeRun reading(int layer, const std::function<void(FakeModel&)>& change) {
    FakeModel model(DType::bf16);
    model.before_reading = [=](FakeModel& m, int at) {
      if (at == layer) change(m);
    };
    return fake_run(model, DType::bf16);
  }
  static void forget_values(FakeRun& run) {
    for (Pass& pass : run.passes)
      for (RecordedTensor& t : pass.tensors)
        if (t.point->is_cache()) t.data = {};
  }
  // The value that was written there, as the pass shows it.
  static double written(const FakeRun& run, bool v, int64_t row, int64_t element) {
    const RecordedTensor& t = *run.passes[0].find(v ? point("attn.v") : point("attn.k_rope"), 0);
    return value_at(t.data, row * t.data.view().row_size() + element);
  }
  static bool says(const Finding& finding, const std::string& words) {
    return text_of(finding).find(words) != std::string::npos;
  }
};

constexpr int64_t kHalf = kKvHeads * kDim;

TEST_F(CacheReadTest, VAloneIsSaidToBeWrongWithItsTrueValues) {
  const FakeRun run = reading(0, [](FakeModel& m) {
    m.lane(0, 0)[2][1][kDim + 3] = 77;
    m.lane(0, 0)[2][1][kDim + 4] += 1;  // less far off
  });
  const Result result = judged(run);
  expect_first(result, "layer 0 attn.kv", 0, 0, Verdict::introduced);
  const Finding& f = *result.first;
  EXPECT_TRUE(says(f, "position 2 of request 0 reads V that nobody wrote (V alone of 1 of "))
      << text_of(f);
  EXPECT_EQ(f.index, (std::vector<int64_t>{2, 1, 1, 3}));
  EXPECT_TRUE(says(f, "index [2, V, 1, 3]")) << text_of(f);
  EXPECT_EQ(f.want, written(run, true, 2, kDim + 3));
  EXPECT_EQ(f.got, 77);
}

TEST_F(CacheReadTest, KAloneIsLedBackToWhoWroteIt) {
  const FakeRun run = reading(0, [](FakeModel& m) { m.lane(0, 1)[4][0] = m.lane(0, 0)[3][0]; });
  const Result result = judged(run);
  expect_first(result, "layer 0 attn.kv", 0, 1, Verdict::introduced);
  const Finding& f = *result.first;
  EXPECT_TRUE(says(f,
                   "position 4 of request 1 reads K that request 0 position 3 wrote (K alone of "
                   "1 of "))
      << text_of(f);
  ASSERT_EQ(f.index.size(), 4u);
  EXPECT_EQ(f.index[1], 0);
  EXPECT_EQ(f.got, written(run, false, 3, f.index[2] * kDim + f.index[3]));
  EXPECT_NE(f.want, f.got);
}

TEST_F(CacheReadTest, KAndVThatChangedPlacesAreSaidSo) {
  bool swapped = false;
  const FakeRun run = reading(1, [&](FakeModel& m) {
    if (!std::exchange(swapped, true)) std::swap(m.lane(1, 0)[2][0], m.lane(1, 0)[2][1]);
  });
  const Result result = judged(run);
  ASSERT_TRUE(result.first);
  const Finding& f = *result.first;
  EXPECT_TRUE(says(f,
                   "reads K that request 0 position 2 wrote as V and V that request 0 position 2 "
                   "wrote as K (K and V of 1 of "))
      << text_of(f);
}

TEST_F(CacheReadTest, AnotherSignOfZeroIsShown) {
  FakeModel model(DType::bf16, [](const Place& p, const PassInfo& info, std::vector<double>& v) {
    if (p.point->name == "attn.v" && p.layer == 0 && info.pass == 0) v[2 * kHalf + 5] = 0;
  });
  model.before_reading = [](FakeModel& m, int layer) {
    if (layer == 0) m.lane(0, 0)[2][1][5] = -0.0;
  };
  const Result result = judged(fake_run(model, DType::bf16));
  for (const Finding& f : result.findings) {
    if (!f.node.place.point->is_cache()) continue;
    EXPECT_EQ(f.index, (std::vector<int64_t>{2, 1, 0, 5}));
    EXPECT_TRUE(says(f, "want 0, got -0")) << text_of(f);
    return;
  }
  ADD_FAILURE() << result.story;
}

TEST_F(CacheReadTest, ByHashesAloneNoValueIsMadeUp) {
  FakeRun run = reading(0, [](FakeModel& m) { m.lane(0, 0)[2][1][0] = 77; });
  forget_values(run);
  const Result result = judged(run);
  expect_first(result, "layer 0 attn.kv", 0, 0, Verdict::introduced);
  const Finding& f = *result.first;
  EXPECT_TRUE(says(f, "position 2 of request 0 reads K or V that nobody wrote (K or V of 1 of "))
      << text_of(f);
  EXPECT_TRUE(f.index.empty());
  EXPECT_FALSE(says(f, "want")) << text_of(f);
  EXPECT_NE(report_json(result).find("\"want\": null"), std::string::npos);
}

TEST_F(CacheReadTest, ByHashesARowThatWasWrittenIsKnownByItsWriter) {
  FakeRun run = reading(0, [](FakeModel& m) { m.lane(0, 1)[4] = m.lane(0, 0)[3]; });
  forget_values(run);
  const Result result = judged(run);
  const Finding& f = *result.first;
  EXPECT_TRUE(says(f,
                   "position 4 of request 1 reads K and V that request 0 position 3 wrote (K "
                   "and V of 1 of "))
      << text_of(f);
  ASSERT_EQ(f.index.size(), 4u);
  const int64_t at = f.index[2] * kDim + f.index[3];
  EXPECT_EQ(f.got, written(run, f.index[1] == 1, 3, at));
  EXPECT_NE(f.want, f.got);
}

TEST_F(CacheReadTest, WhatIsWrongEverywhereIsARuleOfItsHead) {
  const FakeRun run = reading(1, [](FakeModel& m) {
    for (int32_t request = 0; request < 2; ++request)
      for (size_t p = 4; p < m.lane(1, request).size(); ++p)
        for (size_t i = kDim; i < 2 * kDim; ++i) m.lane(1, request)[p][1][i] = 50;
  });
  const Result result = judged(run);
  ASSERT_TRUE(result.first && result.first->shape) << result.story;
  EXPECT_EQ(result.first->shape->where, "V, kv head 1, positions >= 4");
  // And where some nodes are known by hashes alone, of whole rows.
  FakeRun partly = run;
  for (RecordedTensor& t : partly.passes.back().tensors)
    if (t.point->is_cache()) t.data = {};
  const Result mixed = judged(partly);
  ASSERT_TRUE(mixed.first && mixed.first->shape) << mixed.story;
  EXPECT_EQ(mixed.first->shape->where, "positions >= 4");
}

}  // namespace
}  // namespace lockstep
