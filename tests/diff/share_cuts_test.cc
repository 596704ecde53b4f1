// Two traces whose attention is cut into shares of other keys, and of the same.
#include "src/diff/share_cuts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "src/judge/shares.h"
#include "tests/diff/diff_runs.h"

namespace lockstep {
namespace {

RecordedTensor shown(const Point& p, int layer, const Pass& pass, const Shape& shape,
                     const std::vector<double>& values) {
  RecordedTensor t{.point = &p, .layer = layer, .dtype = DType::f32, .shape = shape};
  for (const PassRow& r : pass.info.rows) t.rows.push_back(r.row);
  t.data = rounded_tensor(values, shape, DType::f32);
  t.digest = digest_of(t.data);
  t.row_hashes = row_hashes_of(t.data);
  return t;
}

// A run in so many shares of its pages, in which the numbers of a share say which of its keys the
// query sees.
FakeRun cut(int64_t page_size, int64_t shares) {
  FakeRun run = run_of();
  run.manifest.provenance["page_size"] = std::to_string(page_size);
  run.manifest.graph = qwen_graph({.layers = 2, .qk_norm = true, .shares = true});
  for (Pass& pass : run.passes) {
    std::map<int32_t, int64_t> lengths;
    for (const PassRow& r : pass.info.rows)
      lengths[r.row.request] = std::max<int64_t>(lengths[r.row.request], r.row.position + 1);
    std::vector<double> partial, lse;
    for (const PassRow& r : pass.info.rows) {
      const std::vector<int64_t> begins = share_begins(lengths[r.row.request], page_size, shares);
      for (size_t s = 0; s + 1 < begins.size(); ++s) {
        const auto seen = [&](int64_t end) { return std::min<int64_t>(end, r.row.position + 1); };
        const double keys = static_cast<double>(seen(begins[s + 1]) - seen(begins[s]));
        partial.insert(partial.end(), kHeads * kDim, keys);
        lse.insert(lse.end(), kHeads,
                   keys > 0 ? std::log(keys) : -std::numeric_limits<double>::infinity());
      }
    }
    const auto rows = std::ssize(pass.info.rows);
    for (const int layer : {0, 1}) {
      pass.tensors.push_back(
          shown(point("attn.partial"), layer, pass, {rows, shares, kHeads, kDim}, partial));
      pass.tensors.push_back(shown(point("attn.lse"), layer, pass, {rows, shares, kHeads}, lse));
    }
  }
  return run;
}

bool names_cuts(const DiffResult& result) {
  return std::ranges::any_of(result.remarks, [](const std::string& remark) {
    return remark.find("rows of attn.partial and attn.lse are of other keys in the two") !=
           std::string::npos;
  });
}

TEST(ShareCuts, OfOtherKeysAreSaidAndNotCompared) {
  for (const auto& other : {cut(8, 3), cut(4, 4)}) {
    const DiffResult result = diff_of(cut(4, 3), other);
    EXPECT_EQ(result.verdict, DiffResult::Verdict::identical) << result.story;
    EXPECT_GT(result.only_a, 0);
    EXPECT_EQ(result.only_a, result.only_b);
    EXPECT_EQ(result.more_a, 0);
    EXPECT_TRUE(names_cuts(result)) << result.story;
    EXPECT_NE(result.story.find("in one trace only, and were not compared"), std::string::npos)
        << result.story;
  }
}

// Of 13 positions, shares of whole pages begin at 4 and 8 whether a page holds 4 or 1; of 14 they
// do not.
TEST(ShareCuts, OfTheSameKeysAreComparedWhereverTheOthersLie) {
  const DiffResult result = diff_of(cut(4, 3), cut(1, 3));
  EXPECT_GT(result.only_a, 0);
  const auto found = std::ranges::find_if(result.places, [](const DiffPlace& place) {
    return *place.place.point == point("attn.partial");
  });
  ASSERT_NE(found, result.places.end());
  EXPECT_GT(found->rows, 0);
  EXPECT_EQ(found->rows, found->equal);
}

TEST(ShareCuts, OfOneRunAreAllCompared) {
  for (const Point* p : {&point("attn.partial"), &point("attn.lse")})
    for (const bool says_pages : {true, false}) {
      FakeRun a = cut(4, 3), b = cut(4, 3);
      if (!says_pages) b.manifest.provenance.erase("page_size");
      DiffResult result = diff_of(a, b);
      EXPECT_EQ(result.only_a, 0);
      EXPECT_FALSE(names_cuts(result));
      for (RecordedTensor& t : b.passes[0].tensors)
        if (t.point == p && t.layer == 1) {
          t.data.as<float>()[0] += 1;
          t.digest = digest_of(t.data);
          t.row_hashes = row_hashes_of(t.data);
        }
      result = diff_of(a, b);
      EXPECT_EQ(result.verdict, DiffResult::Verdict::different) << result.story;
      ASSERT_TRUE(result.first_kind);
      EXPECT_EQ(result.first_kind->id.place, (Place{p, 1}));
    }
}

}  // namespace
}  // namespace lockstep
