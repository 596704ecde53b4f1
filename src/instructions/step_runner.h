#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "src/model/timeline.h"
#include "src/schedule/schedule.h"

namespace lockstep {

// The order in which instructions run, among those that the counters allow.
struct Interleaving {
  std::optional<uint64_t> seed;  // of a random order; none: each queue is a thread
  std::vector<int> begin;        // places of instructions that come first, in this order
};

// Runs the instructions of a step by a function of each, which threads call at the same time unless
// a seed or a beginning is given. Throws what the function throws, and Error when queues that are
// no threads stand still. Returns when all have run, with when each did. In threads, what an
// instruction wrote is seen by all that wait for its counters; an order that is seeded is the same
// in every run.
std::vector<TimedWork> run_step(const Schedule& schedule, const Interleaving& interleaving,
                                const std::function<void(const Instruction&)>& compute);

}  // namespace lockstep
