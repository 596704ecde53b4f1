// Ranks are forks of this process before it has opened anything that has threads, so that they are
// of one version and one command line. A rank dies with its parent (PR_SET_PDEATHSIG), whatever
// ends that.
//
// Not every rank that stands still hangs: others wait for it in a collective, and rank 0 judges for
// as long as that takes. One hangs that is stopped, or that gets no further in an op, or that does
// so elsewhere without using its processor.
#include "src/ranks/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <optional>
#include <thread>

#include "kernels/base/sentence.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLook{20};
// How long the others may take to say why, once one rank has ended in trouble.
constexpr std::chrono::milliseconds kGrace{700};
constexpr std::string_view kGone = "a rank is gone";  // of an error that another rank's end makes

// A rank as the watch sees it.
struct Watched {
  pid_t pid = 0;
  bool ended = false;
  int status = 0;  // of waitpid
  int64_t beats = -1;
  long ticks = -1;  // of its processor
  Clock::time_point moved = Clock::now(), used = Clock::now();
};

struct ProcessState {
  char state = '?';  // 'T': stopped
  long ticks = 0;
};

// From /proc/PID/stat, after the name, which may hold anything.
ProcessState state_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t end = text.rfind(')');
  ProcessState seen;
  if (end == std::string::npos) return seen;
  long user = 0, system = 0;
  if (std::sscanf(text.c_str() + end + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld",
                  &seen.state, &user, &system) == 3)
    seen.ticks = user + system;
  return seen;
}

std::string doing_text(const RankNews& news) {
  const CollectiveCall call{static_cast<CollectiveCall::Kind>(news.call[0].load()), news.call[1],
                            news.call[2], news.call[3], news.call[4]};
  const std::string pass = news.pass < 0 ? "" : fmt::format(" of pass {}", news.pass.load());
  switch (static_cast<RankDoes>(news.does.load())) {
    case RankDoes::starts:
      return "at its start";
    case RankDoes::loads:
      return "while it loaded its weights";
    case RankDoes::meets:
      return "while the ranks met";
    case RankDoes::computes:
      return news.called ? fmt::format("in its ops after {}{}", text_of(call), pass)
                         : fmt::format("in its first ops{}", pass);
    case RankDoes::waits:
      return fmt::format("in {}{}", text_of(call), pass);
    case RankDoes::judges:
      return pass.empty() ? "while it judged"
                          : fmt::format("while it judged pass {}", news.pass.load());
    case RankDoes::ended:
      break;
  }
  return "at its end";
}

class Watch {
 public:
  // own: the only rank that is a process of this one; -1: all are.
  Watch(int ranks, std::chrono::milliseconds patience, RankNews* news, int own = -1)
      : patience_(patience), news_(news), own_(own), ranks_(ranks) {
    for (int rank = 0; rank < ranks; ++rank) ranks_[rank].ended = own >= 0 && rank != own;
  }
  ~Watch() { end_all(); }
  Watch(const Watch&) = delete;

  std::vector<Watched>& ranks() { return ranks_; }

  // Returns rank 0's exit status, or the only one's.
  int watch() {
    const size_t first = std::max(0, own_);
    std::optional<Clock::time_point> first_trouble;
    for (;;) {
      look();
      if (ranks_[first].ended && WIFEXITED(ranks_[first].status) && news_[first].sentence[0] == 0)
        break;
      for (const Watched& rank : ranks_)
        if (rank.ended && !first_trouble && !went_well(rank)) first_trouble = Clock::now();
      if (first_trouble && Clock::now() - *first_trouble > kGrace) fail("{}", why_ended());
      if (!first_trouble) find_hanging();
      std::this_thread::sleep_for(kLook);
    }
    const auto until = Clock::now() + kGrace;
    while (Clock::now() < until && !all_ended()) {
      std::this_thread::sleep_for(kLook);
      look();
    }
    return WEXITSTATUS(ranks_[first].status);
  }

 private:
  static bool went_well(const Watched& rank) {
    return WIFEXITED(rank.status) && WEXITSTATUS(rank.status) == 0;
  }
  bool all_ended() const {
    return std::ranges::all_of(ranks_, [](const Watched& rank) { return rank.ended; });
  }

  void look() {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      Watched& rank = ranks_[i];
      if (!rank.ended && waitpid(rank.pid, &rank.status, WNOHANG) == rank.pid) rank.ended = true;
      if (const int64_t beats = news_[i].beats; beats != rank.beats) {
        rank.beats = beats;
        rank.moved = Clock::now();
      }
    }
  }

  // A cause that a rank has of its own is why; what another rank's end did to it is not.
  std::string why_ended() const {
    std::string best;
    int gravity = 0;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const Watched& rank = ranks_[i];
      if (!rank.ended || went_well(rank)) continue;
      const std::string sentence = news_[i].sentence;
      int own = 4;
      std::string text;
      if (WIFSIGNALED(rank.status)) {
        text = fmt::format("rank {} was ended by signal {} ({}) {}: the other ranks were ended too",
                           i, WTERMSIG(rank.status), strsignal(WTERMSIG(rank.status)),
                           doing_text(news_[i]));
      } else if (sentence.empty()) {
        own = 2;
        text = fmt::format("rank {} ended with status {} {}: the other ranks were ended too", i,
                           WEXITSTATUS(rank.status), doing_text(news_[i]));
      } else {
        own = sentence.find(kGone) != std::string::npos ? 1 : 3;
        text = i == 0 || own_ >= 0 ? sentence : fmt::format("rank {}: {}", i, sentence);
      }
      if (own > gravity) gravity = own, best = text;
    }
    return best;
  }

  void find_hanging() {
    const auto now = Clock::now();
    if (own_ >= 0) return find_lost(now);
    bool waited_for = false;
    for (size_t i = 0; i < ranks_.size(); ++i)
      waited_for |= !ranks_[i].ended && waits(i) && now - ranks_[i].moved > patience_;
    if (!waited_for) return;
    for (size_t i = 0; i < ranks_.size(); ++i)
      if (hangs(i, now))
        fail("rank {} hangs {}: it got no further for {} s, and all ranks were ended", i,
             doing_text(news_[i]), static_cast<double>(patience_.count()) / 1000);
  }

  // A rank of others' is waited for as long as it lives: the meeting alone has an end.
  void find_lost(Clock::time_point now) {
    const bool meets = static_cast<RankDoes>(news_[own_].does.load()) == RankDoes::meets;
    check(!meets || ranks_[own_].ended || now - ranks_[own_].moved <= patience_,
          "rank {} met nobody within {} s: is the port of --rendezvous another program's?", own_,
          static_cast<double>(patience_.count()) / 1000);
  }

  bool waits(size_t i) const {
    const auto does = static_cast<RankDoes>(news_[i].does.load());
    return does == RankDoes::waits || does == RankDoes::meets;
  }

  bool hangs(size_t i, Clock::time_point now) {
    Watched& rank = ranks_[i];
    const ProcessState seen = state_of(rank.pid);
    if (seen.ticks != rank.ticks) {
      rank.ticks = seen.ticks;
      rank.used = now;
    }
    if (rank.ended || now - rank.moved <= patience_) return false;
    const auto does = static_cast<RankDoes>(news_[i].does.load());
    return seen.state == 'T' || does == RankDoes::computes ||
           (!waits(i) && now - rank.used > std::min<Clock::duration>(patience_, kIdle));
  }

  void end_all() {
    for (Watched& rank : ranks_) {
      if (rank.ended || rank.pid <= 0) continue;
      kill(rank.pid, SIGKILL);
      waitpid(rank.pid, &rank.status, 0);
      rank.ended = true;
    }
  }

  static constexpr std::chrono::seconds kIdle{5};
  std::chrono::milliseconds patience_;
  RankNews* news_;
  int own_;
  std::vector<Watched> ranks_;
};

// The rank's own life, from the fork on.
[[noreturn]] void live(RankSeat seat, pid_t parent, const std::function<int(RankSeat&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int status = 2;
  if (getppid() == parent) {
    try {
      status = body(seat);
      seat.does(RankDoes::ended);
    } catch (const std::exception& error) {
      seat.tell_trouble(sentence_of(error));
    }
  }
  std::fflush(nullptr);
  _exit(status);  // LibTorch's threads do not survive the end of statics
}

}  // namespace

void RankSeat::does(RankDoes what) {
  own().does = static_cast<int>(what);
  beat();
}

void RankSeat::waits_in(const CollectiveCall* call) {
  if (call) {
    own().call[0] = static_cast<int64_t>(call->kind);
    own().call[1] = call->point;
    own().call[2] = call->layer;
    own().call[3] = call->bytes;
    own().call[4] = call->dtype;
    own().called = true;
  }
  does(call ? RankDoes::waits : RankDoes::computes);
}

// Each is there within microseconds of the others, or computes for long: then who waits lets others
// have the processor.
std::vector<CollectiveCall> RankSeat::tell(const CollectiveCall& call) {
  const int64_t number = own().tells;
  own().told[number % 2] = call;
  own().tells.store(number + 1, std::memory_order_release);
  std::vector<CollectiveCall> calls;
  for (int rank = 0; rank < ranks_; ++rank) {
    for (int tries = 0; news_[rank].tells.load(std::memory_order_acquire) <= number; ++tries) {
      constexpr int kSpins = 2000, kYields = 2200;
      if (tries > kYields)
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      else if (tries > kSpins)
        std::this_thread::yield();
    }
    calls.push_back(news_[rank].told[number % 2]);
  }
  return calls;
}

int RankSeat::port() const {
  while (news_[0].port == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return news_[0].port;
}

void RankSeat::tell_trouble(const std::string& sentence) {
  const std::string cut = sentence.substr(0, sizeof own().sentence - 1);
  std::memcpy(own().sentence, cut.c_str(), cut.size() + 1);
}

namespace {

// News of all ranks, in memory that processes forked from here on share.
class SharedNews {
 public:
  explicit SharedNews(int ranks) : bytes_(sizeof(RankNews) * static_cast<size_t>(ranks)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "{} bytes of memory for {} ranks to share were not to be had",
          bytes_, ranks);
    news_ = static_cast<RankNews*>(memory);
    for (int rank = 0; rank < ranks; ++rank) new (news_ + rank) RankNews;
    std::fflush(nullptr);  // else each rank prints it too
  }
  ~SharedNews() { munmap(news_, bytes_); }
  SharedNews(const SharedNews&) = delete;

  RankNews* get() const { return news_; }

 private:
  size_t bytes_;
  RankNews* news_ = nullptr;
};

pid_t start(const RankSeat& seat, const std::function<int(RankSeat&)>& body) {
  const pid_t parent = getpid(), pid = fork();
  if (pid == 0) live(seat, parent, body);
  check(pid > 0, "no process could be started for rank {} of {}: {}", seat.rank(), seat.ranks(),
        std::strerror(errno));
  return pid;
}

}  // namespace

int run_ranks(int ranks, std::chrono::milliseconds patience,
              const std::function<int(RankSeat&)>& body) {
  const SharedNews news(ranks);
  Watch watch(ranks, patience, news.get());
  for (int rank = 0; rank < ranks; ++rank)
    watch.ranks()[rank].pid = start(RankSeat(rank, ranks, news.get()), body);
  return watch.watch();
}

int join_ranks(int rank, int ranks, const Rendezvous& rendezvous,
               std::chrono::milliseconds patience, const std::function<int(RankSeat&)>& body) {
  const SharedNews news(ranks);
  Watch watch(ranks, patience, news.get(), rank);
  watch.ranks()[rank].pid = start(RankSeat(rank, ranks, news.get(), &rendezvous), body);
  return watch.watch();
}

}  // namespace lockstep
