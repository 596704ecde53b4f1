// The processes of a model over ranks, and the watch over them.
//
//     this process            rank 0, 1, ... N - 1, each a fork of it
//       run_ranks  ----------->  body(seat)
//          |   what it is doing,    |  through memory that all of them share
//          +<--- how far it is -----+
//
// A rank that dies, or is not heard of while others wait for it, ends all of them. No rank outlives
// this process.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>

#include "src/ranks/exchange.h"

namespace lockstep {

// The occupation of a rank, for the watch.
enum class RankDoes : int { starts, loads, meets, computes, waits, judges, ended };

// The news of a rank, in memory that the processes share.
struct RankNews {
  // The calls that it told, in turn, and how many: one is read by all before the next but one is
  // told, for that needs what they tell next.
  CollectiveCall told[2];
  std::atomic<int64_t> tells{0};
  std::atomic<int> does{0};
  std::atomic<int64_t> beats{0};   // grows while the rank gets on
  std::atomic<int64_t> call[5]{};  // the collective that it waits in or computed last
  std::atomic<bool> called{false};
  std::atomic<int64_t> pass{-1};
  std::atomic<int> port{0};  // rank 0: where the others find it; 0: not yet known
  char sentence[1024] = {};  // of the trouble that ended it
};

// Where ranks meet that were started each by itself.
struct Rendezvous {
  std::string host;
  int port = 0;
  bool hosted = false;  // as of a Meeting
  std::string name = "lockstep";
  int gpu = 0;  // the number of the rank's card, where it computes on one
};

// A rank's place among the others: its number, and its line to the watch. Any thread may tell.
class RankSeat {
 public:
  // elsewhere: of a rank that was started by itself; borrowed, null: the ranks are of one process.
  RankSeat(int rank, int ranks, RankNews* news, const Rendezvous* elsewhere = nullptr)
      : rank_(rank), ranks_(ranks), news_(news), elsewhere_(elsewhere) {}

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const Rendezvous* elsewhere() const { return elsewhere_; }
  void does(RankDoes what);
  void beat() { ++own().beats; }
  void in_pass(int64_t pass) { own().pass = pass; }
  // Waits in that collective from here on; null: no more.
  void waits_in(const CollectiveCall* call);
  // Tells the other ranks of this process what this one calls next, and waits for theirs.
  std::vector<CollectiveCall> tell(const CollectiveCall& call);
  // Where the ranks meet. Others than rank 0 wait until it is told.
  void tell_port(int port) { news_[0].port = port; }
  int port() const;
  void tell_trouble(const std::string& sentence);

 private:
  RankNews& own() { return news_[rank_]; }

  int rank_, ranks_;
  RankNews* news_;  // one a rank
  const Rendezvous* elsewhere_;
};

// Calls `body` in as many processes, and returns the status that rank 0's ended with. `patience` is
// how long a rank may get no further while others wait for it. Throws Error, with the rank and what
// it was doing, when one of them dies, hangs or throws; by then all have ended. This process must
// have one thread.
int run_ranks(int ranks, std::chrono::milliseconds patience,
              const std::function<int(RankSeat&)>& body);

// Calls `body` in a process as one rank of several that others start, and returns its status.
// Throws Error as run_ranks() does, of this rank alone: patience is how long its meeting with the
// others may take beyond what it says itself. Who is gone ends the others by the collectives.
int join_ranks(int rank, int ranks, const Rendezvous& rendezvous,
               std::chrono::milliseconds patience, const std::function<int(RankSeat&)>& body);

}  // namespace lockstep
