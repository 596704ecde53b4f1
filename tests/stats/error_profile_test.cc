// Where errors lie: buckets that widen, bins by powers of two, the furthest ten.
#include "src/stats/error_profile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A run of `positions` rows of `shape`; the error of an element is `error` of where it is.
template <typename Error>
ErrorProfile profile(std::vector<int64_t> shape, int64_t first, int64_t positions, Error error) {
  ErrorProfile all(shape);
  int64_t size = 1;
  for (const int64_t extent : shape) size *= extent;
  for (int64_t p = first; p < first + positions; ++p, ++all.rows)
    for (int64_t i = 0; i < size; ++i) all.add(p, i, 1, 2, error(p, i));
  return all;
}

TEST(ErrorProfile, TakesEachHeadAndPositionForItself) {
  const ErrorProfile all = profile({3, 4}, 2, 2, [](int64_t p, int64_t i) {
    return static_cast<double>(10 * p) + static_cast<double>(i);
  });
  EXPECT_EQ(all.columns.width, 1);
  EXPECT_EQ(all.columns.largest, (std::vector<double>{33, 37, 41}));
  ASSERT_EQ(all.positions.largest.size(), 4u);
  EXPECT_TRUE(std::isnan(all.positions.largest[1])) << "nothing was compared there";
  EXPECT_EQ(all.positions.largest[2], 31);
  EXPECT_EQ(all.positions.largest[3], 41);
  EXPECT_EQ(all.map[2 * 3 + 1], 27);
  EXPECT_TRUE(std::isnan(all.map[0]));
  EXPECT_EQ(all.elements, 24);
  EXPECT_EQ(all.rows, 2);
}

TEST(ErrorProfile, BucketsNeverExceedSixtyFour) {
  const ErrorProfile all = profile(
      {1000}, 0, 500, [](int64_t p, int64_t i) { return p == 321 && i == 999 ? 7.0 : 0.5; });
  EXPECT_EQ(all.columns.width, 16);
  EXPECT_EQ(all.columns.largest.size(), 63u);
  EXPECT_EQ(all.columns.largest[62], 7);
  EXPECT_EQ(all.columns.largest[61], 0.5);
  EXPECT_EQ(all.positions.width, 8);
  EXPECT_EQ(all.positions.largest.size(), 63u);
  for (size_t i = 0; i < 63; ++i) EXPECT_EQ(all.positions.largest[i], i == 40 ? 7 : 0.5) << i;
  EXPECT_EQ(all.map.size(), 63u * 63u);
}

TEST(ErrorProfile, IsTheSameHoweverRowsAreJoined) {
  const auto error = [](int64_t p, int64_t i) {
    return std::ldexp(1 + static_cast<double>((p * 7919 + i * 104729) % 1009), -3);
  };
  for (const int64_t cut : {1, 63, 64, 65, 200, 256}) {
    const ErrorProfile all = profile({5, 3}, 0, 257, error);
    ErrorProfile joined;
    joined.add(profile({5, 3}, 0, cut, error));
    joined.add(profile({5, 3}, cut, 257 - cut, error));
    ErrorProfile turned;
    turned.add(profile({5, 3}, cut, 257 - cut, error));
    turned.add(profile({5, 3}, 0, cut, error));
    for (const ErrorProfile& other : {joined, turned}) {
      EXPECT_EQ(other.positions.width, all.positions.width) << cut;
      EXPECT_EQ(other.positions.largest, all.positions.largest) << cut;
      EXPECT_EQ(other.columns.largest, all.columns.largest) << cut;
      EXPECT_EQ(other.map, all.map) << cut;
      EXPECT_EQ(other.histogram, all.histogram) << cut;
      EXPECT_EQ(other.rows, all.rows);
      ASSERT_EQ(other.worst.size(), ErrorProfile::kMostWorst);
      for (size_t i = 0; i < other.worst.size(); ++i)
        EXPECT_EQ(other.worst[i].budgets, all.worst[i].budgets);
    }
  }
}

TEST(ErrorProfile, BinsEndAtPowersOfTwo) {
  EXPECT_EQ(ErrorProfile::bin_of(0), 0);
  EXPECT_EQ(ErrorProfile::bin_of(5e-324), 0);
  EXPECT_EQ(ErrorProfile::bin_of(std::ldexp(1, -16)), 0);
  EXPECT_EQ(ErrorProfile::bin_of(std::nextafter(std::ldexp(1, -16), 1)), 1);
  EXPECT_EQ(ErrorProfile::bin_of(1), 16) << "an error of the budget is within it";
  EXPECT_EQ(ErrorProfile::bin_of(std::nextafter(1, 2)), 17);
  EXPECT_EQ(ErrorProfile::bin_of(2), 17);
  EXPECT_EQ(ErrorProfile::bin_of(1e300), 63);
}

TEST(ErrorProfile, CountsWhatIsInfinitelyOffApart) {
  ErrorProfile all({4});
  for (int64_t i = 0; i < 4; ++i) all.add(0, i, 1, NAN, i < 2 ? kInfinity : 3);
  EXPECT_EQ(all.nonfinite, 2);
  EXPECT_EQ(all.histogram[18], 2);
  EXPECT_EQ(all.positions.largest[0], kInfinity);
  EXPECT_EQ(all.worst.front().budgets, kInfinity);
}

TEST(ErrorProfile, NamesTheFurthestTenInFull) {
  ErrorProfile all = profile({2, 8}, 5, 1, [](int64_t, int64_t i) {
    return i == 11 ? 100.0 : static_cast<double>(i % 4);
  });
  all.name_node(3, 1);
  ASSERT_EQ(all.worst.size(), 10u);
  EXPECT_EQ(all.worst[0].index, (std::vector<int64_t>{5, 1, 3}));
  EXPECT_EQ(all.worst[0].pass, 3);
  EXPECT_EQ(all.worst[0].request, 1);
  EXPECT_EQ(all.worst[1].index, (std::vector<int64_t>{5, 0, 3})) << "the first of equal ones";
}

}  // namespace
}  // namespace lockstep
