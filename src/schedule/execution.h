#pragma once

#include <cstdint>
#include <vector>

#include "src/schedule/schedule.h"

namespace lockstep {

// By queue, the places in Schedule::instructions of its instructions, in their order.
std::vector<std::vector<int>> lists_of(const Schedule& schedule);

// A schedule as its queues and counters run it, one instruction at a time; what they compute is not
// looked at. Small to copy, so that two executions can begin alike. Borrows both arguments.
class Execution {
 public:
  Execution(const Schedule& schedule, const std::vector<std::vector<int>>& lists);

  // Runs all that can run, in rounds over the queues, never `without` (a place in
  // Schedule::instructions; -1: none is left out). Appends each to `order` as it ends.
  void run(int without, std::vector<int>& order);
  void step(int queue);  // runs the next one of a queue, which can run

  int next(int queue) const;      // its place; -1: all of the queue have run
  bool can_run(int place) const;  // of a queue's next one: whether its waits are over
  int64_t value(int counter) const { return values_[counter]; }

 private:
  const Schedule* schedule_;
  const std::vector<std::vector<int>>* lists_;
  std::vector<size_t> heads_;    // by queue, places in its list
  std::vector<int64_t> values_;  // by counter
};

}  // namespace lockstep
