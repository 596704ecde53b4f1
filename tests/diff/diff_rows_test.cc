// Which rows of two traces decide, and which row a finding names.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "src/judge/ledger.h"
#include "tests/diff/diff_runs.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

TEST(Diff, APlaceOrARowThatOnlyOneHasIsCounted) {
  FakeRun less = run_of();
  std::erase_if(less.passes[0].tensors,
                [](const RecordedTensor& t) { return t.point->name == "mlp.up" && t.layer == 0; });
  // The rows that both have decide, and the others are said.
  DiffResult r = diff_of(run_of(), less);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::identical);
  EXPECT_EQ(r.story,
            fmt::format("all {} rows that both have have the same bits; 22 rows are in one "
                        "trace only, and were not compared",
                        r.rows));
  EXPECT_EQ(r.only_a, 22);
  r = diff_of(less, run_of());
  EXPECT_EQ(r.verdict, DiffResult::Verdict::identical);
  EXPECT_EQ(r.only_b, 22);
  r = diff_of(less, run_of(DType::bf16,
                           spoil_at("mlp.down", 1, [](std::vector<double>& v) { v[0] += 100; })));
  ASSERT_TRUE(r.first_kind) << r.story;
  EXPECT_NE(r.story.find("; 22 rows are in one trace only"), std::string::npos) << r.story;
  less = run_of();
  less.passes.pop_back();
  r = diff_of(run_of(), less);
  EXPECT_GT(r.only_a, 0);
  EXPECT_EQ(r.more_a, 2);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::different) << "a run of fewer tokens is another run";
  EXPECT_EQ(r.story, "2 tokens were fed in one trace only");
  EXPECT_EQ(diff_of(less, run_of()).only_b, 2);
  EXPECT_EQ(diff_of(less, run_of()).more_b, 2);
}

// What attention read is a fact of the pass, as no other row's being shown is.
TEST(Diff, ARowOfTheCacheThatOnlyOneReadsIsDifferentInKind) {
  for (const bool last : {false, true}) {
    FakeRun less = run_of();
    auto& cache = const_cast<RecordedTensor&>(*less.passes[0].find(point("attn.kv"), 1));
    const Row row = last ? cache.rows.back() : cache.rows.front();
    const auto without_it = [last](auto& all) { all.erase(last ? all.end() - 1 : all.begin()); };
    without_it(cache.rows), without_it(cache.row_hashes);
    std::vector<int64_t> extents(cache.shape.extents().begin(), cache.shape.extents().end());
    extents[0] = std::ssize(cache.rows);
    cache.shape = Shape(extents);
    cache.data = {};
    for (const bool swapped : {false, true}) {
      const DiffResult r = swapped ? diff_of(less, run_of()) : diff_of(run_of(), less);
      EXPECT_EQ(r.verdict, DiffResult::Verdict::different) << r.story;
      ASSERT_TRUE(r.first_kind) << r.story;
      EXPECT_EQ(text_of(r.first_kind->id.place), "layer 1 attn.kv");
      EXPECT_EQ(r.first_kind->position, row.position);
      EXPECT_NE(r.story.find("only one of the two reads that row"), std::string::npos) << r.story;
    }
  }
}

TEST(Diff, RowsThatOneFoundInItsCacheMakeNoDifference) {
  FakeRun less = run_of();
  less.passes.erase(less.passes.begin());
  for (const bool swapped : {false, true}) {
    const DiffResult r = swapped ? diff_of(less, run_of()) : diff_of(run_of(), less);
    EXPECT_EQ(r.verdict, DiffResult::Verdict::identical) << r.story;
    EXPECT_EQ(swapped ? r.only_b : r.only_a, 22);
    EXPECT_EQ(r.more_a + r.more_b, 0);
    EXPECT_NE(r.story.find("; 22 rows are in one trace only"), std::string::npos) << r.story;
  }
}

// Rows 3 and 7 are off, and 7 by more.
TEST(Diff, AFindingIsAtTheRowThatIsFurthestOff) {
  const auto spoilt = [](const char* name) {
    return run_of(DType::bf16, spoil_at(name, 1, [](std::vector<double>& v) {
                    if (v.size() % 22 != 0) return;
                    const size_t width = v.size() / 22;
                    v[3 * width] += 8 * std::fabs(v[3 * width]) + 1;
                    v[7 * width] += 64 * std::fabs(v[7 * width]) + 50;
                  }));
  };
  for (const char* name : {"attn.k_norm", "attn.residual"}) {
    const DiffResult r = diff_of(run_of(), spoilt(name));
    ASSERT_TRUE(r.first_kind) << r.story;
    EXPECT_EQ(r.first_kind->id.place.point->name, name) << r.story;
    EXPECT_EQ(r.first_bits->position, 3);
    EXPECT_EQ(r.first_kind->position, 7) << r.story;
  }
}

TEST(Diff, ATraceWhoseBestOfLogitsAreNotItsTensorsIsRefused) {
  FakeRun wrong = run_of();
  wrong.passes[1].logits.at(0).values[0] += 1;
  for (const bool swapped : {false, true})
    EXPECT_NE(error_of([&] {
                swapped ? diff_of(wrong, run_of()) : diff_of(run_of(), wrong);
              }).find("pass 1 of a trace, request 0, position 13: /logits says that number 1"),
              std::string::npos);
}

}  // namespace
}  // namespace lockstep
