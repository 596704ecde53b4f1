// Each line of what a run could not have shown: said of the run that could not, and not of the same
// run with what it takes.
#include "src/judge/coverage.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/judge/fake_model.h"

namespace lockstep {
namespace {

// One pass after another, each of some requests' next positions.
class Facts {
 public:
  explicit Facts(int64_t page_size = 4, int64_t window = 0) : facts_(page_size, window) {}

  struct Part {
    int32_t request, from, to;
    std::vector<int32_t> pages = {};
    Phase phase = Phase::prefill;
  };
  Facts& pass(const std::vector<Part>& parts, std::vector<Inherited> inherited = {}) {
    Pass pass;
    for (const Part& part : parts) {
      for (int32_t p = part.from; p < part.to; ++p)
        pass.info.rows.push_back({{part.request, p}, 1, -1, part.phase});
      if (!part.pages.empty()) pass.info.pages.push_back({part.request, part.pages});
    }
    pass.info.inherited = std::move(inherited);
    pass.tensors = tensors_;
    facts_.add(pass);
    return *this;
  }
  Facts& with(std::string_view name, int64_t heads, const std::vector<double>& row = {}) {
    RecordedTensor t{.point = find_point(name), .layer = 0, .rows = {{0, 0}}};
    t.shape = {1, heads, row.empty() ? 4 : std::ssize(row) / heads};
    if (!row.empty()) t.data = rounded_tensor(row, t.shape, DType::bf16);
    t.dtype = DType::bf16;
    tensors_.push_back(std::move(t));
    return *this;
  }
  bool not_covered(const std::string& what) const {
    return std::ranges::any_of(facts_.not_covered(), [&](const std::string& line) {
      return line.find(what) != std::string::npos;
    });
  }

 private:
  RunCoverage facts_;
  std::vector<RecordedTensor> tensors_;
};

TEST(Blind, ToQueriesAndKeysOfOneToken) {
  EXPECT_TRUE(Facts().pass({{0, 0, 1}}).not_covered("position 0 sees itself alone"));
  EXPECT_FALSE(Facts().pass({{0, 0, 2}}).not_covered("position 0 sees itself alone"));
}

TEST(Blind, ToPositionsOf16Bits) {
  EXPECT_TRUE(Facts().pass({{0, 0, 256}}).not_covered("none is past 255; the last is 255"));
  EXPECT_FALSE(Facts().pass({{0, 0, 257}}).not_covered("none is past 255"));
  EXPECT_FALSE(
      Facts().pass({{0, 0, 1}}).not_covered("none is past 255"));  // that is said otherwise
}

TEST(Blind, ToAWindowThatNoPositionIsPast) {
  EXPECT_TRUE(
      Facts(4, 8).pass({{0, 0, 8}}).not_covered("sliding window (no position is past its 8"));
  EXPECT_FALSE(Facts(4, 8).pass({{0, 0, 9}}).not_covered("sliding window"));
  EXPECT_FALSE(Facts(4, 0).pass({{0, 0, 8}}).not_covered("sliding window"));  // there is none
}

TEST(Blind, ToDecodingAndChunks) {
  EXPECT_TRUE(Facts().pass({{0, 0, 5}}).not_covered("prefill only"));
  EXPECT_FALSE(
      Facts().pass({{0, 0, 5}}).pass({{0, 5, 6, {}, Phase::decode}}).not_covered("prefill only"));
  const char* chunks = "several queries over a longer cache";
  EXPECT_TRUE(Facts().pass({{0, 0, 5}}).pass({{0, 5, 6}}).not_covered(chunks));
  EXPECT_FALSE(Facts().pass({{0, 0, 5}}).pass({{0, 5, 7}}).not_covered(chunks));
}

TEST(Blind, ToTheMapOfHeadsWithoutGroups) {
  const auto run = [](int64_t heads, int64_t kv_heads) {
    return Facts().with("attn.q_rope", heads).with("attn.k_rope", kv_heads).pass({{0, 0, 1}});
  };
  EXPECT_TRUE(run(4, 4).not_covered("4 heads, 4 K/V heads"));
  EXPECT_TRUE(run(4, 1).not_covered("4 heads, 1 K/V heads"));
  EXPECT_FALSE(run(4, 2).not_covered("K/V heads"));
  EXPECT_FALSE(Facts().pass({{0, 0, 1}}).not_covered("K/V heads"));  // not known
}

TEST(Blind, ToGainsThatAreAllTheSame) {
  const std::vector<double> before = {1, -2, 0.5, 4};
  const auto run = [&](const std::vector<double>& after) {
    return Facts().with("attn.q", 1, before).with("attn.q_norm", 1, after).pass({{0, 0, 1}});
  };
  EXPECT_TRUE(run({0.5, -1, 0.25, 2}).not_covered("all gains are the same"));
  EXPECT_TRUE(
      run({0.5, -1, 0.25, 2 + 0x1p-6}).not_covered("all gains are the same"));  // by rounding
  EXPECT_FALSE(run({0.5, -1, 0.5, 2}).not_covered("all gains are the same"));
  EXPECT_FALSE(Facts().pass({{0, 0, 1}}).not_covered("all gains are the same"));  // not known
}

TEST(Blind, ToTablesOfFewPagesInOrder) {
  EXPECT_TRUE(Facts().pass({{0, 0, 8, {3, 5}}}).not_covered("no request has 3 pages; most: 2"));
  EXPECT_FALSE(Facts().pass({{0, 0, 9, {3, 5, 1}}}).not_covered("no request has 3 pages"));
  EXPECT_TRUE(Facts().pass({{0, 0, 8, {3, 4}}}).not_covered("all pages lie in order"));
  EXPECT_FALSE(Facts().pass({{0, 0, 8, {3, 5}}}).not_covered("all pages lie in order"));
  EXPECT_FALSE(Facts().pass({{0, 0, 8}}).not_covered("pages"));  // not known
}

TEST(Blind, ToTheTailOfAPageThatIsFull) {
  EXPECT_TRUE(Facts().pass({{0, 0, 8, {0, 1}}}).not_covered("every length is a multiple of 4"));
  EXPECT_FALSE(Facts().pass({{0, 0, 7, {0, 1}}}).not_covered("multiple of 4"));
  EXPECT_FALSE(Facts(0).pass({{0, 0, 8, {0, 1}}}).not_covered("multiple of"));  // not known
}

TEST(Blind, ToSharedPages) {
  const Inherited whole{1, {7, 7, 7, 7}}, part{1, {7, 7, 7, 7, 7}};
  const auto run = [](std::vector<Inherited> inherited, int32_t from) {
    Facts made;
    made.pass({{0, 0, 6, {2, 0}}});
    return made.pass({{1, from, 9, {2, 1, 3}}}, std::move(inherited));
  };
  EXPECT_TRUE(run({}, 0).not_covered("none begins with another's tokens"));
  EXPECT_FALSE(run({whole}, 4).not_covered("none begins with another's tokens"));
  EXPECT_TRUE(run({whole}, 4).not_covered("no requests part inside a page"));
  EXPECT_FALSE(run({part}, 5).not_covered("no requests part inside a page"));
}

TEST(Blind, ToPreemption) {
  const char* what = "no request was preempted";
  const auto start = [] { return Facts().pass({{0, 0, 6, {2, 0}}}); };
  EXPECT_TRUE(start().pass({{0, 6, 7, {2, 0}}}).not_covered(what));
  EXPECT_TRUE(start().pass({{0, 6, 9, {2, 0, 5}}}).not_covered(what));  // a page more
  EXPECT_TRUE(start().pass({{0, 6, 7, {2, 4}}}).not_covered(what));     // a copy of a shared one
  EXPECT_FALSE(start().pass({{0, 6, 7, {4, 3}}}).not_covered(what));    // swapped out and in
  EXPECT_FALSE(start().pass({{0, 0, 7, {2, 0}}}).not_covered(what));    // computed again
  EXPECT_FALSE(Facts().pass({{0, 0, 2, {1}}}).pass({{0, 2, 3, {2}}}).not_covered(what));
}

TEST(Blind, ToOtherRequests) {
  EXPECT_TRUE(Facts().pass({{0, 0, 5}}).pass({{1, 0, 5}}).not_covered("no pass has two requests"));
  EXPECT_FALSE(Facts().pass({{0, 0, 5}, {1, 0, 6}}).not_covered("no pass has two requests"));
  // One that only ever decodes has one row a pass of every op.
  EXPECT_TRUE(Facts().pass({{0, 4, 5}}).pass({{0, 5, 6}}).not_covered("nor two rows of any op"));
  EXPECT_FALSE(Facts().pass({{0, 0, 5}}).pass({{0, 5, 6}}).not_covered("nor two rows of any op"));
  EXPECT_TRUE(Facts().pass({{0, 0, 5}, {1, 0, 5}}).not_covered("all are equally long"));
  EXPECT_FALSE(Facts().pass({{0, 0, 5}, {1, 0, 6}}).not_covered("all are equally long"));
  // Requests of two lengths, but none of them beside another.
  const auto equal = [] { return Facts().pass({{0, 0, 5}, {1, 0, 5}}).pass({{2, 0, 9}}); };
  EXPECT_TRUE(equal().not_covered("no pass has requests of two lengths"));
  EXPECT_FALSE(equal().pass({{0, 5, 6}, {2, 9, 10}}).not_covered("mixed-up lengths"));
}

TEST(Blind, ToNothingWhereARunHasItAll) {
  Facts run(4, 100);
  run.with("attn.q_rope", 4).with("attn.k_rope", 2);
  run.with("attn.q", 1, {1, 2}).with("attn.q_norm", 1, {1, 4});
  run.pass({{0, 0, 260, {7, 2, 5}}, {1, 0, 9, {1, 0, 3}}});
  run.pass({{2, 6, 9, {1, 4, 6}}}, {{2, {1, 1, 1, 1, 1, 1}}});
  run.pass({{0, 260, 261, {8, 6, 4}, Phase::decode}});
  EXPECT_FALSE(run.not_covered(""));
}

}  // namespace
}  // namespace lockstep
