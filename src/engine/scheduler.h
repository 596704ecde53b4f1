#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "src/engine/page_pool.h"
#include "src/engine/request.h"

namespace lockstep {

struct SchedulerOptions {
  int64_t page_size = 16;
  int64_t chunk = 0;      // most prompt tokens of a request in one pass; 0: all
  int64_t max_batch = 0;  // most requests in one pass; 0: no limit
};

// The next `tokens` tokens of a sequence, to be computed in one pass.
struct Share {
  Sequence* sequence = nullptr;
  int64_t tokens = 0;
};

// Decides what each pass computes: first come, first served. A request enters when pages for all it
// can ever need are free, so a running one never waits for a page.
class Scheduler {
 public:
  Scheduler(PagePool& pool, SchedulerOptions options) : pool_(pool), options_(options) {}

  // Throws Error when the request can never fit into the pool.
  void add(Sequence& sequence);

  // The shares of the next pass, each with the pages it writes; empty when all has been done.
  // `fresh` gets the pages that were handed out for it.
  std::vector<Share> next(std::vector<int32_t>& fresh);

  // Ends a running sequence and frees its pages.
  void end(Sequence& sequence);

 private:
  int64_t pages_for(int64_t positions) const {
    return (positions + options_.page_size - 1) / options_.page_size;
  }
  void admit();

  PagePool& pool_;
  SchedulerOptions options_;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> running_;  // in the order in which they entered
};

}  // namespace lockstep
