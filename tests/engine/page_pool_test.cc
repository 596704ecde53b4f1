#include "src/engine/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

using Tokens = std::vector<int32_t>;

std::vector<int32_t> take_all(PagePool& pool) {
  std::vector<int32_t> pages;
  while (pool.available() > 0) pages.push_back(pool.take());
  return pages;
}

TEST(PagePool, HandsOutEveryPageOnceAscending) {
  PagePool pool(5, 0);
  EXPECT_EQ(take_all(pool), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_THROW(pool.take(), Error);
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

TEST(PagePool, APageIsFreeWhenItsLastHolderGivesItBack) {
  PagePool pool(2, 0);
  const int32_t page = pool.take();
  pool.share(page);
  pool.give_back(page);
  EXPECT_EQ(pool.available(), 1);
  pool.give_back(page);
  EXPECT_EQ(pool.available(), 2);
  EXPECT_EQ(pool.take(), page) << "what was freed last goes first";
}

TEST(PagePool, APublishedPageIsFoundByItsWholePrefix) {
  PagePool pool(4, 0);
  const Tokens a = {1, 2}, b = {3, 4};
  const int32_t first = pool.take(), second = pool.take();
  pool.publish(first, 0, a);
  pool.publish(second, PagePool::prefix_key(0, a), b);
  EXPECT_EQ(pool.find(0, a), first);
  EXPECT_EQ(pool.find(PagePool::prefix_key(0, a), b), second);
  EXPECT_EQ(pool.find(0, b), std::nullopt) << "the same tokens after another prefix";
  EXPECT_EQ(pool.holders(first), 2);
}

TEST(PagePool, UnusedPublishedPagesAreKeptAndTheOldestGoesFirst) {
  PagePool pool(3, 0);
  const std::vector<Tokens> tokens = {{1}, {2}, {3}};
  for (const Tokens& t : tokens) pool.publish(pool.take(), 0, t);
  for (int32_t page : {1, 0, 2}) pool.give_back(page);
  EXPECT_EQ(pool.available(), 3);
  EXPECT_EQ(pool.find(0, tokens[1]), 1);  // used again: now the youngest
  pool.give_back(1);
  EXPECT_EQ(pool.take(), 0);
  EXPECT_EQ(pool.find(0, tokens[0]), std::nullopt) << "evicted";
  EXPECT_EQ(pool.find(0, tokens[2]), 2);
}

TEST(PagePool, RefusesWhatCannotBe) {
  EXPECT_THROW(PagePool(0, 0), Error);
  PagePool pool(2, 0);
  EXPECT_THROW(pool.give_back(0), Error);
  EXPECT_THROW(pool.share(1), Error);
  EXPECT_THROW(pool.publish(1, 0, {}), Error);
  EXPECT_THROW(pool.give_back(2), Error);
  EXPECT_THROW(pool.give_back(-1), Error);
}

// The same rules written the slow and obvious way.
class NaivePool {
 public:
  explicit NaivePool(int64_t pages) : holders(static_cast<size_t>(pages), 0) {}

  int64_t available() const { return std::ranges::count(holders, 0); }
  void took(int32_t page) {
    std::erase_if(published, [&](const auto& entry) { return entry.second == page; });
    std::erase(order, page);
    holders[static_cast<size_t>(page)] = 1;
  }
  // The page that must go: any that is free, else the published one that was unused the longest.
  bool may_take(int32_t page) const {
    if (holders[static_cast<size_t>(page)] != 0) return false;
    const auto is_published = [&](int32_t p) {
      return std::ranges::any_of(published, [&](const auto& e) { return e.second == p; });
    };
    for (int32_t p = 0; p < std::ssize(holders); ++p)
      if (holders[static_cast<size_t>(p)] == 0 && !is_published(p)) return !is_published(page);
    return order.front() == page;
  }
  void gave_back(int32_t page) {
    if (--holders[static_cast<size_t>(page)] == 0) order.push_back(page);
  }

  std::vector<int> holders;
  std::map<std::pair<uint64_t, Tokens>, int32_t> published;
  std::vector<int32_t> order;  // pages by when they were last given back
};

TEST(PagePool, DoesWhatTheNaivePoolDoesForAMillionRandomOperations) {
  constexpr int64_t kPages = 12;
  PagePool pool(kPages, 5);
  NaivePool naive(kPages);
  std::mt19937_64 random(20260);
  std::vector<int32_t> held;
  const auto any_held = [&] { return static_cast<long>(random() % held.size()); };
  for (int step = 0; step < 1'000'000; ++step) {
    const uint64_t parent = random() % 3;
    const Tokens tokens = {static_cast<int32_t>(random() % 5)};
    switch (random() % 5) {
      case 0:
        if (pool.available() == 0) break;
        held.push_back(pool.take());
        ASSERT_TRUE(naive.may_take(held.back())) << "step " << step;
        naive.took(held.back());
        break;
      case 1: {
        if (held.empty()) break;
        const long i = any_held();
        pool.give_back(held[static_cast<size_t>(i)]);
        naive.gave_back(held[static_cast<size_t>(i)]);
        held.erase(held.begin() + i);
        break;
      }
      case 2:
        if (held.empty() || held.size() > 40) break;
        held.push_back(held[static_cast<size_t>(any_held())]);
        pool.share(held.back());
        ++naive.holders[static_cast<size_t>(held.back())];
        break;
      case 3: {
        if (held.empty()) break;
        const int32_t page = held[static_cast<size_t>(any_held())];
        const bool known = std::ranges::any_of(
            naive.published, [&](const auto& entry) { return entry.second == page; });
        pool.publish(page, parent, tokens);
        if (!known) naive.published.try_emplace({parent, tokens}, page);
        break;
      }
      case 4: {
        if (held.size() > 40) break;
        const auto found = pool.find(parent, tokens);
        const auto wanted = naive.published.find({parent, tokens});
        ASSERT_EQ(found.has_value(), wanted != naive.published.end()) << "step " << step;
        if (!found) break;
        ASSERT_EQ(*found, wanted->second);
        if (naive.holders[static_cast<size_t>(*found)]++ == 0) std::erase(naive.order, *found);
        held.push_back(*found);
        break;
      }
    }
    ASSERT_EQ(pool.available(), naive.available()) << "step " << step;
  }
  for (int32_t page : held) pool.give_back(page);
  EXPECT_EQ(pool.available(), kPages);
}

}  // namespace
}  // namespace lockstep
