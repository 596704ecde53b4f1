// Resident memory as the system counts it.
#pragma once

namespace lockstep {

// The most memory that this process has had resident, in bytes; reset() begins anew where the
// system can. bytes() throws Error on a system that does not count it.
struct PeakMemory {
  static void reset();
  static double bytes();
};

}  // namespace lockstep
