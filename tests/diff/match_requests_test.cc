// Requests of two engines, which number them in their own ways, are paired by their tokens.
#include "src/diff/match_requests.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/judge/memory_trace.h"

namespace lockstep {
namespace {

struct Request {
  int32_t id = 0;
  std::vector<int32_t> prompt, more;  // more: fed after the prompt, a pass each
  std::string name;
};

// A trace without tensors. listed: /requests has them.
MemoryTrace trace_of(const std::vector<Request>& requests, bool listed = true) {
  FakeRun run;
  Pass first{.info = {.pass = 0}};
  for (const Request& r : requests)
    for (int32_t p = 0; p < std::ssize(r.prompt); ++p)
      first.info.rows.push_back({{r.id, p}, r.prompt[static_cast<size_t>(p)], p});
  run.passes.push_back(first);
  for (const Request& r : requests) {
    if (listed) run.manifest.requests.push_back({.id = r.id, .name = r.name, .prompt = r.prompt});
    for (size_t i = 0; i < r.more.size(); ++i) {
      const auto at = static_cast<int32_t>(r.prompt.size() + i);
      Pass pass{.info = {.pass = static_cast<int32_t>(run.passes.size())}};
      pass.info.rows.push_back({{r.id, at}, r.more[i], at});
      run.passes.push_back(pass);
    }
  }
  return MemoryTrace(run);
}

// The numbers that the requests of b get, by their own.
std::map<int32_t, int32_t> numbers(MemoryTrace a, const std::vector<Request>& b, bool listed) {
  MemoryTrace other = trace_of(b, listed);
  const MatchedRequests matched(a, other);
  std::map<int32_t, int32_t> all;
  const Pass before = other.read(0, false), after = matched.trace().read(0, false);
  for (size_t i = 0; i < before.info.rows.size(); ++i)
    all[before.info.rows[i].row.request] = after.info.rows[i].row.request;
  return all;
}

using Numbers = std::map<int32_t, int32_t>;
const std::vector<int32_t> kP = {5, 6, 7}, kQ = {8, 9}, kR = {1, 2, 3, 4};

TEST(MatchedRequests, TakeThoseOfOnePromptInTheirOrder) {
  for (const bool listed : {true, false}) {
    const auto a = [&] { return trace_of({{0, kP}, {1, kQ}, {2, kP}, {3, kP}}, listed); };
    EXPECT_EQ(numbers(a(), {{2, kP}, {7, kQ}, {4, kP}, {5, kP}}, listed),
              (Numbers{{2, 0}, {7, 1}, {4, 2}, {5, 3}}));
    EXPECT_EQ(numbers(a(), {{3, kP}, {1, kQ}, {0, kP}}, listed), (Numbers{{3, 3}, {1, 1}, {0, 0}}))
        << "they are numbered in one way";
  }
}

TEST(MatchedRequests, PreferTheirNamesAndThenTheSameContinuation) {
  const auto a = [] { return trace_of({{0, kP, {11}, "x"}, {1, kP, {12}, "y"}, {2, kP, {13}}}); };
  EXPECT_EQ(numbers(a(), {{7, kP, {13}}, {8, kP, {20}, "y"}, {9, kP, {20}}}, true),
            (Numbers{{7, 2}, {8, 1}, {9, 0}}));
}

TEST(MatchedRequests, KnowAPromptThatOneOfThemGenerated) {
  const std::vector<int32_t> all = {5, 6, 7, 11, 12};
  EXPECT_EQ(numbers(trace_of({{0, kQ}, {1, kP, {11, 12}}}), {{0, all}, {1, kQ}}, true),
            (Numbers{{0, 1}, {1, 0}}));
  // The two chose other tokens after both prompts.
  EXPECT_EQ(numbers(trace_of({{0, kQ}, {1, kP, {11, 12, 13}}}), {{0, kP, {11, 14}}}, true),
            (Numbers{{0, 1}}));
}

TEST(MatchedRequests, NameThoseThatTheOtherDoesNotHave) {
  MemoryTrace a = trace_of({{0, kP}, {1, kQ}}), b = trace_of({{0, kQ}, {1, kR, {9}}});
  const MatchedRequests matched(a, b);
  EXPECT_EQ(matched.sentences(),
            (std::vector<std::string>{
                "request 0 of the second trace has the tokens of request 1 of the first, and is "
                "compared with it",
                "request 1 of the second trace is numbered 2 here, as another one has its number "
                "in the first"}));
  EXPECT_EQ(matched.alone(),
            (std::vector<std::string>{
                "request 0 of 3 tokens is in the first trace only, and is not compared",
                "request 1 of 5 tokens is in the second trace only, and is not compared"}));
}

// Where no request has another number, one that was asked for something else keeps its own, and is
// compared: what differs is said.
TEST(MatchedRequests, KeepTheNumberOfARequestThatWasAskedForSomethingElse) {
  MemoryTrace a = trace_of({{0, kP}, {1, kQ}}), b = trace_of({{0, kP}, {1, kR}});
  const MatchedRequests matched(a, b);
  EXPECT_EQ(&matched.trace(), &b);
  EXPECT_TRUE(matched.sentences().empty() && matched.alone().empty());
}

}  // namespace
}  // namespace lockstep
