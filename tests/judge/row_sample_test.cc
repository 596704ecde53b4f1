// Rows that are drawn for judging: which, what is said of the others, and how often a bug shows.
#include "src/judge/row_sample.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/judge/judge_fixture.h"

namespace lockstep {
namespace {

const Place kPlace{&point("attn.q_rope"), 0};

TEST(RowSample, IsThatManyRowsInTheirOrder) {
  for (const size_t rows : {5u, 64u, 1000u}) {
    const std::vector<size_t> drawn = drawn_rows({.most = 4, .seed = 3}, kPlace, 0, 0, rows);
    EXPECT_EQ(drawn.size(), 4u);
    EXPECT_TRUE(std::ranges::is_sorted(drawn));
    EXPECT_EQ(std::set(drawn.begin(), drawn.end()).size(), 4u);
    EXPECT_LT(drawn.back(), rows);
    EXPECT_EQ(drawn, drawn_rows({.most = 4, .seed = 3}, kPlace, 0, 0, rows));
  }
  EXPECT_EQ(drawn_rows({.most = 4}, kPlace, 0, 0, 3), (std::vector<size_t>{0, 1, 2}));
  EXPECT_EQ(drawn_rows({}, kPlace, 0, 0, 3), (std::vector<size_t>{0, 1, 2}));
}

TEST(RowSample, IsAnotherForEachNodeAndSeed) {
  const auto drawn = [](uint64_t seed, const Place& place, int32_t pass, int32_t request) {
    return drawn_rows({.most = 8, .seed = seed}, place, pass, request, 1000);
  };
  const std::set<std::vector<size_t>> all = {drawn(0, kPlace, 0, 0),
                                             drawn(1, kPlace, 0, 0),
                                             drawn(0, {&point("attn.k_rope"), 0}, 0, 0),
                                             drawn(0, {&point("attn.q_rope"), 1}, 0, 0),
                                             drawn(0, kPlace, 1, 0),
                                             drawn(0, kPlace, 0, 1)};
  EXPECT_EQ(all.size(), 6u);
}

TEST(RowSample, DrawsEveryRowAsOften) {
  constexpr int kSeeds = 4000;
  std::vector<int> times(16);
  for (uint64_t seed = 0; seed < kSeeds; ++seed)
    for (const size_t row : drawn_rows({.most = 4, .seed = seed}, kPlace, 0, 0, times.size()))
      ++times[row];
  // A quarter of the seeds, give or take five deviations.
  for (const int of_row : times) EXPECT_NEAR(of_row, kSeeds / 4, 5 * std::sqrt(kSeeds * 3 / 16.0));
}

TEST(RowSample, ChanceIsThatOfDrawingWithoutPuttingBack) {
  EXPECT_DOUBLE_EQ(chance_of_any(1, 4, 16), 0.25);
  EXPECT_DOUBLE_EQ(chance_of_any(2, 16, 64), 1 - 48.0 * 47 / (64 * 63));
  EXPECT_DOUBLE_EQ(chance_of_any(3, 14, 16), 1);  // two are left out
  EXPECT_DOUBLE_EQ(chance_of_any(0, 4, 16), 0);
  JudgedRows rows;
  rows.add(16, 16);
  EXPECT_TRUE(rows.all());
  EXPECT_DOUBLE_EQ(rows.power(), 1);
  rows.add(32, 64), rows.add(16, 64), rows.add(16, 20);
  EXPECT_EQ(rows.node_rows, 64);
  EXPECT_EQ(rows.of_node, 16);
  EXPECT_EQ(rows.judged, 80);
  EXPECT_EQ(rows.expected, 164);
  EXPECT_DOUBLE_EQ(rows.power(), chance_of_any(2, 16, 64));
}

class RowSampleTest : public JudgeTest {
 protected:
  static constexpr int kRows = 64;

  // A prompt of so many rows, of which those are wrong at a place.
  static FakeRun with_wrong(const std::function<bool(int64_t)>& is_wrong,
                            std::string_view name = "attn.q_rope") {
    FakeModel model(DType::bf16,
                    [=](const Place& place, const PassInfo& info, std::vector<double>& v) {
                      if (place.point->name != name || place.layer != 0) return;
                      const size_t rows = info.rows.size(), size = v.size() / rows;
                      for (size_t r = 0; r < rows; ++r)
                        if (is_wrong(info.rows[r].row.position))
                          for (size_t i = 0; i < size; ++i) v[r * size + i] += 1;
                    });
    return fake_run(model, DType::bf16, /*steps=*/0, {kRows});
  }
  Result drawn(const FakeRun& run, int64_t most, uint64_t seed = 0, const char* points = "") {
    return judged(run, /*models=*/false,
                  {.selection = {points, "", "", ""}, .rows = {.most = most, .seed = seed}});
  }
};

TEST_F(RowSampleTest, CleanIsSaidOfWhatWasJudgedAlone) {
  const FakeRun run = with_wrong([](int64_t) { return false; });
  const Result some = drawn(run, 4);
  EXPECT_EQ(some.verdict, RunVerdict::clean) << some.story;
  EXPECT_EQ(some.judged, some.expected);
  EXPECT_EQ(some.scope.rows.of_node, 4);
  EXPECT_EQ(some.scope.rows.node_rows, kRows);
  EXPECT_LT(some.scope.rows.judged, some.scope.rows.expected / 8);
  EXPECT_NE(some.story.find("of which 4 of 64 rows of a node"), std::string::npos) << some.story;
  ASSERT_FALSE(some.blind.empty());
  EXPECT_TRUE(some.blind[0].starts_with("bugs of few rows (4 of 64 rows of a node"))
      << some.blind[0];
  EXPECT_NE(some.blind[0].find("one row in 32 of such a node shows with probability 0.12"),
            std::string::npos)
      << some.blind[0];
  // Of more rows than there are, and of all, nothing is left out.
  for (const int64_t most : {int64_t{kRows}, int64_t{0}}) {
    const Result all = drawn(run, most);
    EXPECT_TRUE(all.scope.rows.all());
    EXPECT_EQ(all.scope.rows.judged, all.scope.rows.expected);
    EXPECT_EQ(all.story.find("of which"), std::string::npos) << all.story;
    EXPECT_FALSE(all.blind[0].starts_with("bugs of few rows"));
  }
}

TEST_F(RowSampleTest, ABugInAllRowsIsFound) {
  for (const char* name : {"attn.norm", "attn.q", "attn.q_rope", "attn.out", "mlp.act"}) {
    const FakeRun run = with_wrong([](int64_t) { return true; }, name);
    for (uint64_t seed = 0; seed < 8; ++seed)
      expect_first(drawn(run, 4, seed), std::string("layer 0 ") + name, 0, 0, Verdict::introduced);
  }
}

TEST_F(RowSampleTest, ABugInFewRowsIsFoundAsOftenAsIsSaid) {
  const FakeRun run = with_wrong([](int64_t position) { return position == 9 || position == 40; });
  constexpr int kSeeds = 300, kMost = 16;
  int found = 0;
  double power = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Result result = drawn(run, kMost, seed, "attn.q_rope");
    found += result.verdict == RunVerdict::diverged ? 1 : 0;
    power = result.scope.rows.power();
    // Where it is not, that rows were left out is said.
    EXPECT_FALSE(result.scope.rows.all());
  }
  EXPECT_NEAR(power, 0.44, 0.005);  // two of 64 are one in 32
  EXPECT_NEAR(found, kSeeds * power, 4 * std::sqrt(kSeeds * power * (1 - power)));
}

// The rows of a finding are those of the pass, whatever their number among the drawn ones.
TEST_F(RowSampleTest, WhereItIsWrongIsSaidOfTheRowsOfThePass) {
  const FakeRun run = with_wrong([](int64_t position) { return position >= 32; });
  const Result result = drawn(run, 24, 5);
  ASSERT_TRUE(result.first);
  EXPECT_GE(result.first->position, 32);
  ASSERT_TRUE(result.first->shape);
  EXPECT_EQ(result.first->shape->precision, 1);
  EXPECT_EQ(result.first->shape->recall, 1);
  EXPECT_TRUE(result.first->shape->where.starts_with("positions >= 3"))
      << result.first->shape->where;
}

TEST_F(RowSampleTest, CachesAndChoicesAndShapesAreJudgedWhole) {
  // What lies in the cache of one position is not what was written there.
  FakeModel model(DType::bf16);
  model.before_reading = [](FakeModel& m, int layer) {
    if (layer == 1) m.lane(1, 0)[7][0][2] += 1;
  };
  const FakeRun run = fake_run(model, DType::bf16, 0, {kRows});
  expect_first(drawn(run, 1), "layer 1 attn.kv", 0, 0, Verdict::structural);
  FakeRun lacking = with_wrong([](int64_t) { return false; });
  RecordedTensor& gate = tensor(lacking.passes[0], "mlp.gate", 0);
  gate.rows.pop_back();
  expect_first(drawn(lacking, 1), "layer 0 mlp.gate", 0, 0, Verdict::structural);
}

}  // namespace
}  // namespace lockstep
