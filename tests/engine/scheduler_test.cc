// What Scheduler::goes_on foresees comes: two schedulers serve the same requests, of which one
// plans passes before it knows whether a text ends, as an engine does that queues them ahead, and
// takes back those that are of no use.
#include "src/engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace lockstep {
namespace {

// Requests without a model: their tokens do not matter, and when they end is drawn by their number.
class Served {
 public:
  Served(uint64_t seed, bool plans_ahead)
      : plans_ahead_(plans_ahead), pool_(pages_of(seed), seed % 3), scheduler_(pool_, of(seed)) {
    std::mt19937_64 random(seed);
    for (int32_t id = 0; id < 8; ++id) {
      Request request{.prompt = std::vector<int32_t>(1 + random() % 12, 7),
                      .max_new = 1 + static_cast<int64_t>(random() % 20),
                      .arrival = static_cast<int64_t>(random() % 30),
                      .samples = random() % 3 == 0 ? 2 : 1};
      for (int32_t& token : request.prompt) token = id % 2;  // many begin alike
      add(request, id, 0);
      scheduler_.add(sequences_.back());
    }
  }

  // All that a plan is.
  using Seen = std::vector<std::vector<int64_t>>;
  bool pending() const { return scheduler_.pending(); }
  Seen step(int64_t number) {
    Plan plan = ahead_ ? *std::exchange(ahead_, {}) : scheduler_.next(number);
    Seen seen(1);
    for (const Plan::Chunk& chunk : plan.chunks) {
      const Sequence& s = *chunk.sequence;
      seen.push_back({s.id, chunk.tokens, s.computed, s.length()});
      seen.push_back({s.pages.begin(), s.pages.end()});
    }
    for (const Plan::Swap& swap : plan.out)
      seen.push_back({-1, swap.sequence->id, std::ssize(swap.pages)});
    for (const Plan::Swap& swap : plan.in)
      seen.push_back({-2, swap.sequence->id, std::ssize(swap.pages)});
    for (const Plan::Chunk& chunk : plan.chunks) {
      chunk.sequence->computed += chunk.tokens;
      scheduler_.computed(*chunk.sequence);
    }
    if (plans_ahead_) plan_ahead(plan, number + 1);
    choose(plan);
    return seen;
  }
  int foreseen = 0, of_no_use = 0;
  int64_t lost_pages() const { return pool_.pages() - pool_.available(); }

 private:
  // Those of one request at least, and seldom those of all.
  static int64_t pages_of(uint64_t seed) {
    const int64_t one = 32 / of(seed).page_size;
    return one + static_cast<int64_t>(seed / 7 % 40) * one / 16;
  }
  static EngineOptions of(uint64_t seed) {
    return {.page_size = std::array<int64_t, 3>{1, 2, 4}[seed % 3],
            .prefix_cache = seed % 5 == 0,
            .preempt = seed % 2 == 0 ? Preempt::swap : Preempt::recompute};
  }
  void add(const Request& request, int32_t root, int32_t sample) {
    Sequence sequence{.id = static_cast<int32_t>(sequences_.size()),
                      .root_request = root,
                      .sample = sample,
                      .request = request};
    sequence.tokens = request.prompt;
    sequences_.push_back(std::move(sequence));
  }

  void plan_ahead(const Plan& plan, int64_t number) {
    const auto chooses = [](const Plan::Chunk& chunk) {
      const Sequence& s = *chunk.sequence;
      return s.computed == s.length() && !s.argmax.empty() &&
             std::ssize(s.argmax) + 1 < s.request.steps();
    };
    if (!std::ranges::all_of(plan.chunks, chooses) || !scheduler_.goes_on(plan.chunks)) return;
    ++foreseen;
    const int64_t published_before = published();
    for (const Plan::Chunk& chunk : plan.chunks) chunk.sequence->tokens.push_back(0);
    ahead_ = scheduler_.next(number);
    for (const Plan::Chunk& chunk : plan.chunks) chunk.sequence->tokens.pop_back();
    EXPECT_TRUE(ahead_->out.empty() && ahead_->in.empty() && ahead_->copies.empty());
    EXPECT_EQ(published(), published_before) << "what others could find is gone";
    ASSERT_EQ(ahead_->chunks.size(), plan.chunks.size());
    for (size_t i = 0; i < plan.chunks.size(); ++i) {
      EXPECT_EQ(ahead_->chunks[i].sequence, plan.chunks[i].sequence) << "row " << i;
      EXPECT_EQ(ahead_->chunks[i].tokens, 1);
    }
  }

  int64_t published() const {
    int64_t count = 0;
    for (int32_t page = 0; page < pool_.pages(); ++page) count += pool_.published(page);
    return count;
  }

  void choose(const Plan& plan) {
    std::vector<Sequence*> choosing;
    for (const Plan::Chunk& chunk : plan.chunks) {
      Sequence& s = *chunk.sequence;
      if (s.computed < s.length()) continue;
      choosing.push_back(&s);
      if (!s.argmax.empty() || s.sample > 0 || s.request.samples == 1) continue;
      add(s.request, s.root_request, 1);
      scheduler_.fork(s, sequences_.back());
      choosing.push_back(&sequences_.back());
    }
    for (Sequence* s : choosing) {
      s->argmax.push_back(0), s->tokens.push_back(100 + s->id);
      const bool ends_early = std::mt19937_64(s->id * 97 + s->argmax.size())() % 13 == 0;
      if (!ends_early && std::ssize(s->argmax) < s->request.steps()) continue;
      if (ahead_) ++of_no_use, scheduler_.take_back(std::exchange(ahead_, {})->chunks);
      scheduler_.end(*s);
    }
  }

  bool plans_ahead_;
  PagePool pool_;
  Scheduler scheduler_;
  std::deque<Sequence> sequences_;
  std::optional<Plan> ahead_;
};

TEST(Scheduler, WhatIsForeseenIsWhatComesAndWhatIsTakenBackLeavesNoTrace) {
  int foreseen = 0, of_no_use = 0;
  for (uint64_t seed = 1; seed <= 2500; ++seed) {
    SCOPED_TRACE(seed);
    Served plain(seed, false), ahead(seed, true);
    for (int64_t step = 0; plain.pending() && step < 1000; ++step) {
      ASSERT_TRUE(ahead.pending());
      ASSERT_EQ(ahead.step(step), plain.step(step)) << "step " << step;
    }
    EXPECT_FALSE(plain.pending() || ahead.pending());
    EXPECT_EQ(ahead.lost_pages(), 0);
    foreseen += ahead.foreseen, of_no_use += ahead.of_no_use;
  }
  EXPECT_GT(foreseen, 3000);
  EXPECT_GT(of_no_use, 300);
}

}  // namespace
}  // namespace lockstep
