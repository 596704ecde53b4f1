#include "probes/selection.h"

#include <gtest/gtest.h>

#include <chrono>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

std::string error_of(const std::string& points, const std::string& layers) {
  try {
    Selection(points, layers, "", "");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Selection, EmptyTextsMeanAll) {
  const Selection all;
  for (const Point& p : kPoints) EXPECT_TRUE(all.has(p, 3));
  EXPECT_TRUE(all.has(Row{9, 900}));
  EXPECT_TRUE(all.is_everything());
  EXPECT_EQ(all.text(), "");
}

TEST(Selection, FiltersByPointsLayersPositionsAndRequests) {
  const Selection some("attn.q*,mlp.down", "0,3-5", "7", "1-2");
  EXPECT_TRUE(some.has(point("attn.q"), 0));
  EXPECT_TRUE(some.has(point("attn.q_rope"), 5));
  EXPECT_TRUE(some.has(point("mlp.down"), 4));
  EXPECT_FALSE(some.has(point("attn.k"), 0));
  EXPECT_FALSE(some.has(point("attn.q"), 1));
  EXPECT_FALSE(some.has(point("attn.q"), 6));
  EXPECT_TRUE(some.has(Row{1, 7}));
  EXPECT_FALSE(some.has(Row{0, 7}));
  EXPECT_FALSE(some.has(Row{2, 8}));
  EXPECT_TRUE(some.has_request(2));
  EXPECT_FALSE(some.is_everything());
  EXPECT_EQ(some.text(), "--points attn.q*,mlp.down --layers 0,3-5 --positions 7 --requests 1-2");
}

TEST(Selection, PointsOfNoLayerPassEveryLayerFilter) {
  EXPECT_TRUE(Selection("", "2", "", "").has(point("logits"), -1));
  EXPECT_FALSE(Selection("", "2", "", "").has(point("attn.q"), 1));
}

TEST(Selection, RefusesLayersThatTheModelHasNot) {
  const auto refused = [](const std::string& layers) {
    try {
      Selection("", layers, "", "").check_layers(3);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const char* text : {"", "0", "2", "0-2", "1,2"}) EXPECT_EQ(refused(text), "") << text;
  EXPECT_EQ(refused("3"),
            "--layers names layer 3, but the model's layers are 0..2: name some of those");
  for (const char* text : {"0,9", "2-9", "99999999999"})
    EXPECT_NE(refused(text).find("but the model's layers are 0..2"), std::string::npos) << text;
}

TEST(Selection, GlobsKnowStarAndQuestionMark) {
  EXPECT_TRUE(Selection("attn.?", "", "", "").has(point("attn.k"), 0));
  EXPECT_FALSE(Selection("attn.?", "", "", "").has(point("attn.kv"), 0));
  EXPECT_TRUE(Selection("*norm", "", "", "").has(point("final.norm"), -1));
  EXPECT_FALSE(Selection("*.q", "", "", "").has(point("attn.q_norm"), 0));
}

TEST(Selection, GlobsKnowClassesAndQuoteNothing) {
  EXPECT_TRUE(matches_glob("attn.[kq]", "attn.q"));
  EXPECT_FALSE(matches_glob("attn.[!kq]", "attn.q"));
  EXPECT_FALSE(matches_glob("attn.[kq", "attn.q"));
  EXPECT_FALSE(matches_glob("attn\\.q", "attn.q"));
  EXPECT_FALSE(matches_glob("{attn,mlp}.q", "attn.q"));
  EXPECT_TRUE(matches_glob("", ""));
  EXPECT_FALSE(matches_glob("", "attn.q"));
  EXPECT_TRUE(matches_glob("*", ".hidden/with.slash"));
}

// A matcher that tries every way to share a name out among the stars would outlive the test.
TEST(Selection, ManyStarsAgainstALongNameEndAtOnce) {
  std::string stars;
  for (int i = 0; i < 40; ++i) stars += "*a";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(matches_glob(stars + "b", std::string(10'000, 'a')));
  EXPECT_TRUE(matches_glob(stars, std::string(10'000, 'a')));
  EXPECT_NE(error_of(stars + "b", ""), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(Selection, NamesTheNearestPointOfAMisspeltOne) {
  EXPECT_NE(error_of("attn.q_rop", "").find("attn.q_rope"), std::string::npos);
  EXPECT_NE(error_of("attn.q,mlp.upp", "").find("no point matches 'mlp.upp'"), std::string::npos);
  EXPECT_NE(error_of("attn.q,", ""), "");
}

TEST(Selection, RefusesWhatIsNoRange) {
  for (const char* text :
       {"x", "1,", ",1", "5-3", "1-", "-1", "1 ", "1-2-3", "1.5", " 2", "99999999999999999999"})
    EXPECT_NE(error_of("", text).find("--layers"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep
