#include "kernels/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

TEST(ThreadPool, EveryItemIsDoneOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (const int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const int64_t grain : {0, 1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
        pool.run(count, grain, [&](int64_t begin, int64_t end) {
          EXPECT_LT(begin, end);
          EXPECT_TRUE(end - begin >= grain || end == count) << begin << " " << end;
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        for (const auto& times : seen) EXPECT_EQ(times, 1);
      }
    }
  }
}

TEST(ThreadPool, UsesItsThreads) {
  ThreadPool pool(3);
  std::atomic<int> inside = 0;
  pool.run(3, 1, [&](int64_t, int64_t) {
    ++inside;
    while (inside < 3) std::this_thread::yield();  // hangs unless three are at it together
  });
  EXPECT_EQ(inside, 3);
}

TEST(ThreadPool, RethrowsWhatAPieceThrewAndWorksOn) {
  ThreadPool pool(3);
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(pool.run(100, 1,
                          [](int64_t begin, int64_t end) {
                            if (begin <= 42 && 42 < end) fail("item {}", 42);
                          }),
                 Error);
    std::atomic<int64_t> done = 0;
    pool.run(100, 1, [&](int64_t begin, int64_t end) { done += end - begin; });
    EXPECT_EQ(done, 100);
  }
}

TEST(ThreadPool, ALoopInsideALoopRuns) {
  ThreadPool pool(2);
  std::atomic<int64_t> done = 0;
  pool.run(8, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      pool.run(10, 1, [&](int64_t b, int64_t e) { done += e - b; });
  });
  EXPECT_EQ(done, 80);
}

TEST(ThreadPool, CallersTakeTurns) {
  ThreadPool pool(2);
  std::atomic<int64_t> done = 0;
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int i = 0; i < 200; ++i)
        pool.run(16, 1, [&](int64_t begin, int64_t end) { done += end - begin; });
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(done, 4 * 200 * 16);
}

TEST(ThreadPool, WithoutAPoolTheCallerDoesItAll) {
  int calls = 0;
  parallel_for(nullptr, 10, 1, [&](int64_t begin, int64_t end) {
    ++calls;
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 10);
  });
  parallel_for(nullptr, 0, 1, [&](int64_t, int64_t) { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(ThreadPool, RefusesNoThreads) {
  EXPECT_THROW(ThreadPool(0), Error);
  EXPECT_THROW(ThreadPool(-3), Error);
}

}  // namespace
}  // namespace lockstep
