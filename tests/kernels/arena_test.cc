#include "kernels/base/arena.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

constexpr int64_t kMega = 1'000'000;

// An arena over a device of 100 MB that is played: what it gives are numbers, not memory.
class ArenaOf100 : public testing::Test {
 protected:
  void SetUp() override { used_ = given_ = 0, sizes_.clear(); }

  static void* give(int64_t bytes) {
    if (used_ + bytes > 100 * kMega) return nullptr;
    used_ += bytes, ++given_;
    sizes_.push_back(bytes);
    return reinterpret_cast<void*>(sizes_.size());
  }
  static void take(void* memory) {
    int64_t& bytes = sizes_.at(reinterpret_cast<size_t>(memory) - 1);
    EXPECT_GT(bytes, 0) << "given back twice";
    used_ -= std::exchange(bytes, 0);
  }

  inline static int64_t used_, given_;
  inline static std::vector<int64_t> sizes_;  // of what was given; 0: it came back
  Arena arena_{{.allocate = give, .release = take}};
};

TEST_F(ArenaOf100, HandsOutAgainWhatIsAboutAsLarge) {
  void* first = arena_.allocate(8 * kMega);
  arena_.release(first);
  EXPECT_EQ(arena_.kept(), 8 * kMega);
  for (const int64_t bytes : {8'000'000, 7'999'999, 7'111'112}) {
    EXPECT_EQ(arena_.allocate(bytes), first) << bytes;
    EXPECT_EQ(arena_.kept(), 0);
    arena_.release(first);
  }
  for (const int64_t bytes : {8'000'001, 7'111'110, 1})
    EXPECT_NE(arena_.allocate(bytes), first) << bytes;
  EXPECT_EQ(given_, 4);
}

TEST_F(ArenaOf100, HandsOutTheSmallestThatWillDo) {
  void* large = arena_.allocate(1100);
  void* small = arena_.allocate(1010);
  for (void* memory : {large, small}) arena_.release(memory);
  EXPECT_EQ(arena_.allocate(1000), small);
  EXPECT_EQ(arena_.allocate(1000), large);
}

// The access pattern of an engine: the same passes again and again, of which the last one is
// shorter.
TEST_F(ArenaOf100, AsksForNothingMoreOnceItHasSeenAll) {
  const auto pass = [&](int64_t rows) {
    std::vector<void*> taken;
    for (const int64_t row : {4096, 4096, 12288, 1024})
      taken.push_back(arena_.allocate(rows * row));
    for (void* memory : taken) arena_.release(memory);
  };
  for (int round = 0; round < 3; ++round) {
    for (const int64_t rows : {600, 599, 37}) pass(rows);
    EXPECT_EQ(given_, 8);
  }
}

TEST_F(ArenaOf100, GivesBackAllThatItKeepsBeforeItHasNone) {
  void* used = arena_.allocate(10 * kMega);
  for (const int64_t bytes : {40 * kMega, 30 * kMega}) {
    void* kept = arena_.allocate(bytes);
    arena_.release(kept);
  }
  EXPECT_NE(arena_.allocate(90 * kMega), nullptr);
  EXPECT_EQ(arena_.kept(), 0);
  EXPECT_EQ(arena_.allocate(1), nullptr);
  arena_.release(used);  // which is still known
  EXPECT_EQ(arena_.allocate(10 * kMega), used);
}

TEST_F(ArenaOf100, KeepsApartWhatAGraphWorksIn) {
  void* before = arena_.allocate(500);
  arena_.release(before);
  arena_.begin_apart();
  void* inner = arena_.allocate(500);
  EXPECT_EQ(inner, before);
  arena_.release(inner);
  EXPECT_EQ(arena_.allocate(500), inner) << "ops of one graph follow each other";
  arena_.release(inner);
  void* others = arena_.allocate(700);
  std::jthread([&] { arena_.release(others); }).join();
  const Arena::BySize of_graph = arena_.end_apart();

  EXPECT_EQ(of_graph, (Arena::BySize{{500, inner}}));
  EXPECT_NE(arena_.allocate(500), inner);
  EXPECT_EQ(arena_.allocate(700), others) << "another thread's is not the graph's";
  arena_.take_back(of_graph);
  EXPECT_EQ(arena_.allocate(500), inner);
}

}  // namespace
}  // namespace lockstep
