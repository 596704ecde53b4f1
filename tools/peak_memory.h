#pragma once

#include <fstream>
#include <string>

#include "kernels/check.h"

namespace lockstep {

// The most memory that this process has had resident, in bytes; reset() begins anew where the
// system can.
struct PeakMemory {
  static void reset() { std::ofstream("/proc/self/clear_refs") << "5" << std::flush; }
  static double bytes() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) * 1024;
    fail("lockstep bench wants VmHWM in /proc/self/status, found none: run it on Linux");
  }
};

}  // namespace lockstep
