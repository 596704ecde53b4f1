#pragma once

#include <deque>
#include <optional>
#include <random>
#include <vector>

#include "src/engine/options.h"
#include "src/engine/page_pool.h"
#include "src/engine/request.h"

namespace lockstep {

// A plan of the next pass: changes of the cache that come first, in this order, and what to
// compute. Pointers are to the engine's sequences and hold for the step.
struct Plan {
  // The next `tokens` tokens of a sequence, scheduled for one pass.
  struct Chunk {
    Sequence* sequence = nullptr;
    int64_t tokens = 0;
  };

  struct Copy {
    int32_t from = 0, to = 0;
  };
  struct Swap {
    Sequence* sequence = nullptr;
    std::vector<int32_t> pages;
  };
  std::vector<Swap> out;       // copy these pages to host memory: they are others' now
  std::vector<Copy> copies;    // a shared page that is about to be written gets a copy of its own
  std::vector<int32_t> fresh;  // handed out, content meaningless
  std::vector<Swap> in;        // fill these pages from host memory
  std::vector<Chunk> chunks;
  int preempted = 0;  // requests that lost their pages
};

// A scheduler, owned by the engine: it decides what each pass computes. First come, first served: a
// request that came earlier is never kept waiting by a later one, and when pages run out the latest
// running request loses its own. The earliest unfinished request therefore always advances, so
// nothing starves and nothing deadlocks. It holds pages for requests, in `pool`, which it borrows,
// and touches no tensor. Given the same requests, options and steps it plans the same, with a
// random schedule too.
class Scheduler {
 public:
  Scheduler(PagePool& pool, const EngineOptions& options);

  // Throws Error when the request can never fit into the pool.
  void add(Sequence& sequence);
  // A copy of a running sequence that shares all its pages.
  void fork(const Sequence& parent, Sequence& child);

  // The first step from `step` on that has a request to serve: with none before it, one that waits
  // for its arrival need not be waited for step by step.
  int64_t next_busy(int64_t step) const;
  // The plan of step number `step`, counted from 0. Without chunks: nothing to compute now.
  Plan next(int64_t step);
  // Whether the next plan is one more token of each of `chunks`, those of a pass in which each
  // chooses one, in the same order, and takes no page that anybody holds or could find.
  bool goes_on(const std::vector<Plan::Chunk>& chunks) const;
  // After such a plan, which is not carried out: the pages that only it wanted are free again, as
  // they were.
  void take_back(const std::vector<Plan::Chunk>& chunks);
  // True while a request has not ended, even if none can be served before it arrives.
  bool pending() const { return !waiting_.empty() || !running_.empty(); }

  // After a pass: publishes what became full.
  void computed(Sequence& sequence);
  // Ends a running sequence and frees its pages.
  void end(Sequence& sequence);

 private:
  int64_t pages_for(int64_t positions) const {
    return (positions + options_.page_size - 1) / options_.page_size;
  }
  void check_fits(const Sequence& sequence) const;
  int64_t wanted(const Sequence& sequence, int64_t left);
  bool by_chance(unsigned percent) {
    return options_.random_schedule_seed != 0 && random_() % 100 < percent;
  }
  int64_t pages_missing(const Sequence& sequence, int64_t tokens) const;
  bool make_room(Sequence& sequence, int64_t pages, Plan& plan);
  void give_pages(Sequence& sequence, int64_t tokens, Plan& plan);
  void preempt(Sequence& sequence, Plan& plan);
  void release(Sequence& sequence);
  void serve_running(int64_t& left, Plan& plan);
  void admit(int64_t step, int64_t& left, Plan& plan);
  bool admit_one(Sequence& sequence, int64_t& left, Plan& plan);
  void reuse_prefix(Sequence& sequence);

  PagePool& pool_;
  EngineOptions options_;
  std::mt19937_64 random_;
  std::deque<Sequence*> waiting_;   // by id: the order in which they came
  std::vector<Sequence*> running_;  // by id too
};

}  // namespace lockstep
