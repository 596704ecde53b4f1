// A case made small, by a test that only knows which items it needs.
#include "src/replay/reduction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace lockstep {
namespace {

std::vector<int64_t> counting(int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

TEST(Fewest, AreThoseThatAreNeeded) {
  const std::vector<std::vector<int64_t>> needed_sets = {
      {}, {0}, {999}, {3, 500}, {17, 18, 19, 998}};
  for (const std::vector<int64_t>& needed : needed_sets) {
    int64_t tries = 2000;
    const auto shows = [&](const std::vector<int64_t>& some) {
      EXPECT_TRUE(std::ranges::is_sorted(some));
      return std::ranges::includes(some, needed);
    };
    EXPECT_EQ(fewest(counting(1000), shows, tries), needed);
    EXPECT_GT(tries, 0);
  }
}

TEST(Fewest, StopsWhenItsTriesAreUsedUpWithItemsThatStillShow) {
  int64_t tries = 12, asked = 0;
  const auto shows = [&](const std::vector<int64_t>& some) {
    ++asked;
    return std::ranges::count_if(some, [](int64_t i) { return i % 2 == 0; }) == 50;
  };
  const std::vector<int64_t> left = fewest(counting(100), shows, tries);
  EXPECT_EQ(asked, 12);
  EXPECT_TRUE(shows(left));
}

}  // namespace
}  // namespace lockstep
