#include "src/engine/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "kernels/check.h"

namespace lockstep {
namespace {

std::vector<int32_t> take_all(PagePool& pool) {
  EXPECT_TRUE(pool.reserve(pool.pages()));
  std::vector<int32_t> pages;
  while (pool.free() > 0) pages.push_back(pool.take());
  return pages;
}

TEST(PagePool, HandsOutEveryPageOnceAscending) {
  PagePool pool(5, 0);
  EXPECT_EQ(take_all(pool), (std::vector<int32_t>{0, 1, 2, 3, 4}));
}

TEST(PagePool, AnOrderPermutesThePagesAndRepeats) {
  PagePool pool(64, 7), again(64, 7), other(64, 8);
  std::vector<int32_t> pages = take_all(pool);
  EXPECT_EQ(pages, take_all(again));
  EXPECT_NE(pages, take_all(other));
  EXPECT_FALSE(std::ranges::is_sorted(pages));
  std::ranges::sort(pages);
  std::vector<int32_t> all(64);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(pages, all);
}

TEST(PagePool, ReservesNoMoreThanIsFree) {
  PagePool pool(4, 0);
  EXPECT_TRUE(pool.reserve(3));
  EXPECT_FALSE(pool.reserve(2));
  EXPECT_TRUE(pool.reserve(1));
  pool.release(2);
  EXPECT_TRUE(pool.reserve(2));
}

TEST(PagePool, FreedPagesAreUsedAgainFirst) {
  PagePool pool(4, 0);
  ASSERT_TRUE(pool.reserve(3));
  std::vector<int32_t> pages = {pool.take(), pool.take()};
  pool.give_back(pages);
  EXPECT_TRUE(pages.empty());
  EXPECT_EQ(pool.free(), 4);
  EXPECT_EQ(pool.take(), 0);
}

TEST(PagePool, RefusesWhatCannotBe) {
  EXPECT_THROW(PagePool(0, 0), Error);
  PagePool pool(2, 0);
  EXPECT_THROW(pool.take(), Error) << "nothing is reserved";
  EXPECT_THROW(pool.release(1), Error);
  std::vector<int32_t> foreign = {0};
  EXPECT_THROW(pool.give_back(foreign), Error) << "all pages are free already";
}

}  // namespace
}  // namespace lockstep
