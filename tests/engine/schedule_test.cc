// Whatever the schedule, every request gets the tokens that it gets alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "probes/tee.h"
#include "src/audit/audit.h"
#include "tests/fixtures.h"
#include "tests/schedules.h"

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
      now.samples = 1;
      tokens = serve_for_tokens(checkpoint, {.dtype = DType::f32}, {now}).sequences[0].argmax;
    }
    return tokens;
  }
};

// Who came first is seen first, and nobody starves: every pass computes at least one token of the
// earliest running request, which keeps what it has, so that the passes of a run are bounded by its
// tokens. Twice those, because a request that comes back can take the place of a later one.
void expect_fair(const std::vector<PassInfo>& passes, const std::vector<Request>& requests,
                 const std::string& what) {
  std::map<int32_t, int32_t> first_seen;
  for (const PassInfo& pass : passes)
    for (const PassRow& r : pass.rows) first_seen.try_emplace(r.row.request, pass.pass);
  int64_t tokens = 0;
  for (size_t late = 0; late < requests.size(); ++late) {
    tokens += requests[late].samples * requests[late].max_positions();
    for (size_t early = 0; early < late; ++early)
      if (requests[early].arrival <= requests[late].arrival) {
        EXPECT_LE(first_seen.at(static_cast<int32_t>(early)),
                  first_seen.at(static_cast<int32_t>(late)))
            << what << ": request " << late << " overtook request " << early;
      }
  }
  EXPECT_LE(std::ssize(passes), 2 * tokens) << what;
}

// Serves by a random schedule, audited. Each sample of each request must say what the request says
// alone, nobody may starve, and no page may be lost.
void expect_same_tokens(const Checkpoint& checkpoint, uint64_t seed,
                        const std::function<std::vector<int32_t>(const Request&)>& alone) {
  const std::string what = text_of_schedule(checkpoint.dir(), seed);
  const std::vector<Request> requests = family_of_eight(seed % 20, checkpoint.config().vocab);
  const EngineOptions options = random_options(seed, DType::f32);
  Engine engine(checkpoint, cpu_ops(), options);
  for (const Request& request : requests) engine.submit(request);
  Auditor auditor(options.page_size);
  std::vector<PassInfo> passes;
  Recorder recorder(Selection("embed", "", "", ""), false,
                    [&](const Pass& pass) { passes.push_back(pass.info); });
  Tee both(recorder, auditor);
  Probe probe(&both);
  while (engine.step(probe)) {
  }
  ASSERT_EQ(probe.failure(), "") << what;

  expect_fair(passes, requests, what);
  EXPECT_TRUE(auditor.findings().empty()) << what << ": " << auditor.findings().front().rule;
  EXPECT_GT(auditor.rows_read(), 0) << what;
  EXPECT_EQ(engine.pool().available(), engine.pool().pages()) << what << ": a page was lost";
  EXPECT_EQ(engine.requests(), 10) << what << ": two of the eight have a second sample";
  for (int32_t id = 0; id < engine.requests(); ++id) {
    const Sequence& sequence = engine.sequence(id);
    ASSERT_EQ(sequence.argmax, alone(requests[static_cast<size_t>(sequence.root_request)]))
        << what << " request " << id;
  }
}

TEST_F(ScheduleTest, RandomSchedulesChangeNoToken) {
  for (const char* model : {"bard-qwen3", "bard-qwen2.5"})
    for (const uint64_t seed : schedule_seeds(50))
      expect_same_tokens(bard(model), seed,
                         [&](const Request& request) { return alone(bard(model), request); });
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

// A chunk that chance shortens is not left out: the oldest request is in each pass until it ends.
TEST_F(ScheduleTest, ARandomOneAlwaysAdvancesTheOldestRequest) {
  const Checkpoint& checkpoint = bard("bard-qwen3");
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const EngineOptions options{
        .dtype = DType::f32, .page_size = 8, .chunk = 9, .random_schedule_seed = seed};
    const Request request{.prompt = some_tokens(60, 4096), .max_new = 2};
    const Served served = serve(checkpoint, options, {request, request});
    size_t with = 0, last = 0;
    for (size_t i = 0; i < served.passes.size(); ++i)
      if (std::ranges::any_of(served.passes[i].info.rows,
                              [](const PassRow& row) { return row.row.request == 0; }))
        ++with, last = i + 1;
    EXPECT_EQ(with, last) << "seed " << seed;
  }
}

TEST_F(ScheduleTest, AnArrivalFarAwayIsNotWaitedForStepByStep) {
  const Checkpoint& checkpoint = bard("bard-qwen3");
  const auto at = [](int64_t arrival) {
    return Request{.prompt = some_tokens(5, 4096), .max_new = 2, .arrival = arrival};
  };
  const EngineOptions options{.dtype = DType::f32};
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  const Served soon = serve(checkpoint, options, {at(0), at(2), at(3), at(3)});
  const Served late = serve(checkpoint, options, {at(0), at(kLast - 1), at(kLast), at(kLast)});
  ASSERT_EQ(late.passes.size(), soon.passes.size());
  for (size_t i = 0; i < late.passes.size(); ++i)
    EXPECT_EQ(late.passes[i].info.rows.size(), soon.passes[i].info.rows.size()) << i;
  EXPECT_EQ(late.sequences[3].argmax, alone(checkpoint, at(0)));
}

TEST_F(ScheduleTest, APrefixIsNotSharedWhereItsKeysDependOnTheLength) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-dynamic"));
  const Request first{.prompt = some_tokens(40, checkpoint.config().vocab), .max_new = 2};
  Request second = first;
  second.arrival = 3;
  const Served served = serve(
      checkpoint, {.dtype = DType::f32, .page_size = 8, .prefix_cache = true}, {first, second});
  EXPECT_EQ(count(served).rows, 41 + 41);
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
  EngineOptions options{.dtype = DType::f32, .chunk = 4, .max_batched_tokens = 6};
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
