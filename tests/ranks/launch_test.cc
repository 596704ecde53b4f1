// Processes that end, die, throw or stand still, and the sentence that is left of them.
#include "src/ranks/launch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "probes/points.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

std::string trouble_of(const std::function<int(RankSeat&)>& body) {
  try {
    run_ranks(3, 400ms, body);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

void stand_still() {
  for (;;) std::this_thread::sleep_for(1s);
}

TEST(Launch, EndsWithTheStatusOfRankZero) {
  EXPECT_EQ(run_ranks(3, 5s, [](RankSeat& seat) { return seat.rank() == 0 ? 1 : 0; }), 1);
  EXPECT_EQ(run_ranks(1, 5s, [](RankSeat&) { return 0; }), 0);
}

// Each reads all calls of every round, whoever is late.
TEST(Launch, LetsRanksTellTheirCalls) {
  const auto body = [](RankSeat& seat) {
    for (int64_t round = 0; round < 2000; ++round) {
      if (round % 97 == 31 * seat.rank()) std::this_thread::sleep_for(300us);
      const std::vector<CollectiveCall> calls =
          seat.tell({.layer = round, .bytes = round + seat.rank()});
      for (int64_t rank = 0; rank < seat.ranks(); ++rank)
        if (calls.at(rank).layer != round || calls[rank].bytes != round + rank) return 7;
    }
    return 0;
  };
  const auto in_all = [&](RankSeat& seat) {
    const int status = body(seat);
    check(status == 0, "rank {} read another call", seat.rank());
    return status;
  };
  EXPECT_EQ(run_ranks(3, 5s, in_all), 0);
}

TEST(Launch, NamesTheRankThatIsKilled) {
  const std::string text = trouble_of([](RankSeat& seat) {
    seat.does(RankDoes::loads);
    if (seat.rank() == 2) raise(SIGKILL);
    stand_still();
    return 0;
  });
  expect_has(text, "rank 2 was ended by signal 9");
  expect_has(text, "while it loaded its weights");
}

TEST(Launch, NamesTheRankThatThrowsAndNotThoseThatMissIt) {
  const std::string text = trouble_of([](RankSeat& seat) -> int {
    if (seat.rank() == 1) fail("the disk is full");
    if (seat.rank() == 0) fail("an all-reduce failed: a rank is gone");
    stand_still();
    return 0;
  });
  EXPECT_EQ(text, "rank 1: the disk is full");
}

TEST(Launch, NamesTheRankThatStandsStillInAnOpWhileOthersWait) {
  const CollectiveCall call{.point = point("attn.o").order(), .layer = 4};
  const std::string text = trouble_of([call](RankSeat& seat) {
    seat.does(RankDoes::computes);
    if (seat.rank() != 1) seat.waits_in(&call);
    stand_still();
    return 0;
  });
  expect_has(text, "rank 1 hangs in its first ops");
}

TEST(Launch, NamesTheRankThatIsStoppedInACollective) {
  const CollectiveCall call{.point = point("attn.o").order(), .layer = 4};
  const std::string text = trouble_of([call](RankSeat& seat) {
    seat.waits_in(&call);
    if (seat.rank() == 2) raise(SIGSTOP);
    stand_still();
    return 0;
  });
  expect_has(text, "rank 2 hangs in the all-reduce of layer 4 attn.o");
}

TEST(Launch, WaitsForARankThatJudges) {
  const CollectiveCall call{.point = point("attn.o").order()};
  EXPECT_EQ(run_ranks(2, 500ms,
                      [call](RankSeat& seat) {
                        const auto until = std::chrono::steady_clock::now() + 1500ms;
                        seat.does(seat.rank() == 0 ? RankDoes::judges : RankDoes::waits);
                        if (seat.rank() == 1) seat.waits_in(&call);
                        while (std::chrono::steady_clock::now() < until)
                          if (seat.rank() == 1) std::this_thread::sleep_for(10ms);
                        return 0;
                      }),
            0);
}

}  // namespace
}  // namespace lockstep
