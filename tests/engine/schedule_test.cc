// Whatever the schedule, every request gets the tokens that it gets alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/fixtures.h"

namespace lockstep {
namespace {

class ScheduleTest : public testing::Test {
 protected:
  static const Checkpoint& bard(const std::string& name) {
    static std::map<std::string, Checkpoint> open;
    return open.try_emplace(name, Checkpoint::open(data_path(name))).first->second;
  }

  // Greedy tokens of a request that is alone; remembered, because many schedules ask for the same.
  static const std::vector<int32_t>& alone(const Checkpoint& checkpoint, const Request& request) {
    static std::map<std::tuple<std::string, std::vector<int32_t>, int64_t>, std::vector<int32_t>>
        known;
    auto& tokens = known[{checkpoint.dir(), request.prompt, request.max_new}];
    if (tokens.empty()) {
      Request now = request;
      now.arrival = 0;
      tokens = serve(checkpoint, {.dtype = DType::f32}, {now}).sequences[0].argmax;
    }
    return tokens;
  }

  // Eight requests in families that share a beginning.
  static std::vector<Request> family_of_eight(uint64_t seed, int64_t vocab) {
    std::mt19937_64 random(seed);
    std::vector<Request> requests;
    for (int i = 0; i < 8; ++i) {
      Request r{.prompt = some_tokens(static_cast<int64_t>(random() % 3) * 9, vocab, i % 2),
                .max_new = 1 + static_cast<int64_t>(random() % 6),
                .arrival = static_cast<int64_t>(random() % 8)};
      for (int32_t token : some_tokens(1 + static_cast<int64_t>(random() % 12), vocab, 50 + i % 3))
        r.prompt.push_back(token);
      requests.push_back(std::move(r));
    }
    return requests;
  }
};

EngineOptions random_options(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](std::initializer_list<int64_t> of) {
    return *(of.begin() + static_cast<long>(random() % of.size()));
  };
  EngineOptions options{.dtype = DType::f32};
  options.page_size = pick({1, 2, 4, 16});
  options.chunk = pick({0, 1, 5, 16});
  options.budget = pick({0, 3, 20});
  options.max_batch = pick({0, 2, 5});
  options.prefix_cache = pick({0, 1}) == 1;
  options.preempt = pick({0, 1}) == 1 ? Preempt::swap : Preempt::recompute;
  options.page_order = 1 + random() % 1000;
  options.schedule = seed;
  options.threads = 1;
  // Between what the largest request needs and what all need: pages run out often.
  options.pages = (40 + static_cast<int64_t>(random() % 60)) / options.page_size + 2;
  return options;
}

TEST_F(ScheduleTest, RandomSchedulesChangeNoToken) {
  for (const char* model : {"bard-qwen3", "bard-qwen2.5"})
    for (uint64_t seed = 1; seed <= 200; ++seed) {
      const Checkpoint& checkpoint = bard(model);
      const std::vector<Request> requests = family_of_eight(seed % 20, checkpoint.config().vocab);
      const Served served = serve(checkpoint, random_options(seed), requests);
      for (size_t i = 0; i < requests.size(); ++i)
        ASSERT_EQ(served.sequences[i].argmax, alone(checkpoint, requests[i]))
            << model << " schedule " << seed << " request " << i;
    }
}

// Serves requests and counts what was computed.
struct Count {
  int64_t rows = 0, prefix_rows = 0;
  size_t passes = 0;
};
Count count(const Served& served) {
  Count count{.passes = served.passes.size()};
  for (const Pass& pass : served.passes) {
    count.rows += std::ssize(pass.info.rows);
    for (const Inherited& i : pass.info.inherited) count.prefix_rows += std::ssize(i.tokens);
  }
  return count;
}

TEST_F(ScheduleTest, ASharedPrefixIsComputedOnce) {
  const Checkpoint& checkpoint = bard("bard-qwen3");
  Request first{.prompt = some_tokens(40, 4096), .max_new = 2}, second = first;
  second.prompt[37] = 1;
  second.arrival = 3;
  const EngineOptions off{.dtype = DType::f32, .page_size = 8};
  EngineOptions on = off;
  on.prefix_cache = true;
  EXPECT_EQ(count(serve(checkpoint, off, {first, second})).rows, 41 + 41);
  const Served served = serve(checkpoint, on, {first, second});
  EXPECT_EQ(count(served).rows, 41 + 41 - 32);
  EXPECT_EQ(count(served).prefix_rows, 32);
  EXPECT_EQ(served.sequences[1].argmax, alone(checkpoint, second));
}

TEST_F(ScheduleTest, AWholePromptInTheCacheStillComputesItsLastToken) {
  const Checkpoint& checkpoint = bard("bard-qwen3");
  Request first{.prompt = some_tokens(32, 4096), .max_new = 3}, again = first;
  again.arrival = 1;
  const Served served = serve(
      checkpoint, {.dtype = DType::f32, .page_size = 16, .prefix_cache = true}, {first, again});
  EXPECT_EQ(served.sequences[1].argmax, served.sequences[0].argmax);
  EXPECT_EQ(count(served).prefix_rows, 16);
}

TEST_F(ScheduleTest, PreemptionComputesAgainOrSwaps) {
  const Checkpoint& checkpoint = bard("bard-qwen3");
  const std::vector<Request> requests = {{.prompt = some_tokens(20, 4096, 1), .max_new = 14},
                                         {.prompt = some_tokens(20, 4096, 2), .max_new = 14}};
  // Each ends at 33 positions, 9 pages of 4: two do not fit into 14 pages.
  EngineOptions options{.dtype = DType::f32, .page_size = 4, .pages = 14};
  const int64_t once = 2 * 33;
  for (Preempt preempt : {Preempt::recompute, Preempt::swap}) {
    options.preempt = preempt;
    const Served served = serve(checkpoint, options, requests);
    for (size_t i = 0; i < 2; ++i)
      EXPECT_EQ(served.sequences[i].argmax, alone(checkpoint, requests[i]));
    if (preempt == Preempt::swap)
      EXPECT_EQ(count(served).rows, once) << "what was swapped is not computed again";
    else
      EXPECT_GT(count(served).rows, once);
  }
}

TEST_F(ScheduleTest, ATokenBudgetBoundsEveryPass) {
  const Checkpoint& checkpoint = bard("bard-qwen3");
  const std::vector<Request> requests = family_of_eight(3, 4096);
  EngineOptions options{.dtype = DType::f32, .chunk = 4, .budget = 6};
  for (const Pass& pass : serve(checkpoint, options, requests).passes)
    EXPECT_LE(pass.info.rows.size(), 6u);
}

TEST_F(ScheduleTest, AForkSharesItsParentsPagesUntilItWrites) {
  const Checkpoint& checkpoint = bard("bard-qwen3");
  const Request request{.prompt = some_tokens(21, 4096), .max_new = 8};
  Engine engine(checkpoint, cpu_ops(), {.dtype = DType::f32, .page_size = 8, .pages = 12});
  engine.submit(request);
  Probe off;
  engine.step(off);
  engine.step(off);
  const int64_t before = engine.pool().available();
  const int32_t child = engine.fork(0, 4);
  EXPECT_EQ(engine.pool().available(), before) << "a fork takes no page";
  engine.step(off);
  EXPECT_NE(engine.sequence(0).pages.back(), engine.sequence(child).pages.back());
  EXPECT_EQ(engine.sequence(0).pages.front(), engine.sequence(child).pages.front());
  while (engine.step(off)) {
  }
  const std::vector<int32_t> all = alone(checkpoint, request);
  EXPECT_EQ(engine.sequence(0).argmax, all);
  EXPECT_EQ(engine.sequence(child).argmax, (std::vector<int32_t>(all.begin() + 2, all.begin() + 6)))
      << "a greedy fork says what its parent says";
  EXPECT_EQ(engine.pool().available(), 12);
  EXPECT_THROW(engine.fork(0, 1), Error) << "it has ended";
}

TEST_F(ScheduleTest, TheEarlierRequestIsNeverPreemptedForALaterOne) {
  const Checkpoint& checkpoint = bard("bard-qwen3");
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 6; ++i)
    requests.push_back({.prompt = some_tokens(12, 4096, i), .max_new = 10});
  const Served served =
      serve(checkpoint, {.dtype = DType::f32, .page_size = 2, .pages = 13}, requests);
  int32_t next = 0;  // the earliest unfinished request is in every pass
  std::vector<int64_t> chosen(6, 0);
  for (const Pass& pass : served.passes) {
    EXPECT_EQ(pass.info.rows[0].row.request, next);
    for (int32_t row : pass.info.logit_rows)
      ++chosen[static_cast<size_t>(pass.info.rows[static_cast<size_t>(row)].row.request)];
    while (next < 6 && chosen[static_cast<size_t>(next)] == 10) ++next;
  }
  EXPECT_EQ(next, 6);
}

}  // namespace
}  // namespace lockstep
