#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/base/tensor.h"
#include "src/bench/figures.h"

namespace lockstep {

struct BenchOptions {
  std::string shape = "all";  // by name; "all": those that are not large
  std::string model;          // the folder of a checkpoint instead; empty: random weights
  Device device = Device::cpu;
  int threads = 0;       // 0: as many as the machine has
  bool judging = false;  // what judging costs instead, without roofs
  bool growth = false;   // and of that, how it grows
};

// The table of the figures of those shapes, the roofs of the machine first. Each shape has a
// checkpoint of its own, which is gone before the next is made. Shows its progress on stderr.
Table measure(BenchOptions options);

// The figures of one shape over so many ranks, a process each, beside those of one; device: "cpu",
// or "cuda" for a card each. Rank 0 has them shown; returns the exit status. Throws Error when the
// name is not that of one shape, and as run_ranks() does.
int measure_over_ranks(const std::string& shape, const std::string& device, int ranks,
                       const std::function<void(const Table&)>& show);

}  // namespace lockstep
