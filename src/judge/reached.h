#pragma once

namespace lockstep {

// The largest values that the nodes of an op kind reached in a run, in the units of OpLimits
// (limits.h).
struct Reached {
  double inner = 0;                // T1: the share of B beyond the rounding of the store
  double rms = 0;                  // T2, T4
  double share = 0;                // T3
  double gain = 0;                 // T5
  void add(const Reached& other);  // the larger of each
};

}  // namespace lockstep
