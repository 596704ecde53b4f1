// Which keys a share of an attention holds, and shares that hold none.
#include "src/judge/shares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "probes/qwen_graph.h"

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Begins = std::vector<int64_t>;

TEST(GraphOfShares, IsThatOfTheModelWithWhatIsShown) {
  const Graph model = qwen_graph({.layers = 2, .qk_norm = true});
  const Graph shown = qwen_graph({.layers = 2, .qk_norm = true, .shares = true});
  EXPECT_EQ(with_shares_of(shown, model), shown);
  EXPECT_EQ(with_shares_of(model, model), model);
  // In one layer alone.
  const Graph some =
      shown.restricted([](const Place& at) { return !at.point->is_of_shares() || at.layer == 1; });
  EXPECT_EQ(with_shares_of(some, model), some);
}

TEST(GraphOfShares, HasNoReaderOfThemWithoutMerges) {
  const Graph model = qwen_graph({.layers = 2});
  const Graph shown = qwen_graph({.layers = 2, .shares = true}), apart = without_merges(shown);
  EXPECT_EQ(apart.places(), shown.places());
  for (const Place& place : apart.places()) {
    const Place other =
        place.point->is_of_shares() ? Place{&point("attn.out"), place.layer} : place;
    EXPECT_EQ(apart.inputs_of(place), model.inputs_of(other)) << place.point->name;
  }
}

TEST(SharesIn, AreThoseOfTensorsThatFitTheQueries) {
  const Shape queries = {5, 6, 64};
  const Point &partial = point("attn.partial"), &lse = point("attn.lse");
  EXPECT_EQ(shares_in(partial, {5, 3, 6, 64}, queries), 3);
  EXPECT_EQ(shares_in(lse, {5, 3, 6}, queries), 3);
  for (const Shape& shape : {Shape{5, 3, 6, 63}, {5, 3, 7, 64}, {5, 3, 6}, {5, 6, 64}, {5}})
    EXPECT_EQ(shares_in(partial, shape, queries), 0) << shape.text();
  for (const Shape& shape : {Shape{5, 3, 6, 64}, {5, 3, 7}, {5, 6}})
    EXPECT_EQ(shares_in(lse, shape, queries), 0) << shape.text();
  // Nothing is as many times as one likes.
  EXPECT_EQ(shares_in(partial, {5, int64_t{1} << 40, 0, 0}, {5, 0, 0}), 0);
  EXPECT_EQ(shares_in(lse, {5, int64_t{1} << 40, 0}, queries), 0);
}

TEST(SharesWanted, AreThoseOfThePartialResults) {
  const Shape queries = {5, 6, 64};
  const Place partial{&point("attn.partial"), 1}, lse{&point("attn.lse"), 1};
  const RecordedTensor three{.point = partial.point, .layer = 1, .shape = {5, 3, 6, 64}};
  const RecordedTensor narrow{.point = partial.point, .layer = 1, .shape = {5, 3, 6, 63}};
  const RecordedTensor two{.point = lse.point, .layer = 1, .shape = {5, 2, 6}};
  EXPECT_EQ(partial_of(lse), partial);
  EXPECT_EQ(shares_wanted(partial, three, &three, queries), 3);
  EXPECT_EQ(shares_wanted(lse, two, &three, queries), 3);
  EXPECT_EQ(shares_wanted(lse, two, &narrow, queries), 2);
  EXPECT_EQ(shares_wanted(lse, two, nullptr, queries), 2);
  EXPECT_EQ(shares_wanted(partial, narrow, &narrow, queries), 1);
}

TEST(WantedText, NamesSharesWhereTheyAloneAreWrong) {
  const Place partial{&point("attn.partial"), 1}, lse{&point("attn.lse"), 1};
  EXPECT_EQ(wanted_text(lse, {5, 3, 6}, {5, 2, 6}), "[5, 3, 6]");
  EXPECT_EQ(wanted_text(lse, {5, 1, 6}, {5, 2, 7}), "[5, 1 or more, 6]");
  EXPECT_EQ(wanted_text(lse, {5, 1, 6}, {5, 6}), "[5, 1 or more, 6]");
  EXPECT_EQ(wanted_text(partial, {5, 1, 6, 64}, {5, 0, 6, 64}), "[5, 1 or more, 6, 64]");
  EXPECT_EQ(wanted_text({&point("attn.q"), 1}, {5, 6, 64}, {5, 7, 64}), "[5, 6, 64]");
}

TEST(ShareBegins, AreOfWholePages) {
  EXPECT_EQ(share_begins(64, 16, 2), (Begins{0, 32, 64}));
  EXPECT_EQ(share_begins(65, 16, 2), (Begins{0, 32, 65}));  // 5 pages: 2 and 3
  EXPECT_EQ(share_begins(40, 4, 3), (Begins{0, 12, 24, 40}));
  EXPECT_EQ(share_begins(7, 16, 1), (Begins{0, 7}));
}

TEST(ShareBegins, LeaveSharesEmptyWhereThereAreFewerPages) {
  EXPECT_EQ(share_begins(7, 16, 3), (Begins{0, 0, 0, 7}));
  EXPECT_EQ(share_begins(20, 16, 4), (Begins{0, 0, 16, 16, 20}));
}

// Rows of three elements, the second of which may be empty.
class Empty : public testing::Test {
 protected:
  void pass(double wanted, double gotten) {
    want_ = {1, wanted, 3}, got_ = {1.5, gotten, 3};
    budget_ = {.limit = {2, 2, 2}, .variance = {1, 1, 1}};
    of_want_ = want_, of_got_ = got_;
    pass_empty(of_want_, of_got_, budget_, kept_);
  }

  std::vector<double> want_, got_, kept_;
  Budget budget_;
  std::span<const double> of_want_, of_got_;
};

TEST_F(Empty, IsRightOnBothSides) {
  pass(-kInfinity, -kInfinity);
  EXPECT_TRUE(std::ranges::equal(of_want_, std::vector<double>{1, 0, 3}));
  EXPECT_TRUE(std::ranges::equal(of_got_, std::vector<double>{1.5, 0, 3}));
  EXPECT_EQ(budget_.limit, (std::vector<double>{2, 1, 2}));
  EXPECT_EQ(budget_.variance, (std::vector<double>{1, kInfinity, 1}));
}

TEST_F(Empty, StaysOnOneSide) {
  for (const auto& [wanted, gotten] :
       {std::pair(-kInfinity, 2.0), {2.0, -kInfinity}, {-kInfinity, kInfinity}, {2.0, 2.5}}) {
    pass(wanted, gotten);
    EXPECT_TRUE(std::ranges::equal(of_want_, want_));
    EXPECT_TRUE(std::ranges::equal(of_got_, got_));
    EXPECT_EQ(budget_.limit, (std::vector<double>{2, 2, 2}));
  }
  pass(-kInfinity, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(of_got_[1]));
}

}  // namespace
}  // namespace lockstep
