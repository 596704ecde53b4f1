#include "src/bench/peak_memory.h"

#include <malloc.h>

#include <fstream>
#include <string>

#include "kernels/base/check.h"

namespace lockstep {

void PeakMemory::reset() {
  malloc_trim(0);  // what was freed and not given back would be taken again unseen
  // Linux: 5 sets the peak of resident memory back to what it is now (proc(5)).
  std::ofstream("/proc/self/clear_refs") << "5" << std::flush;
}

double PeakMemory::bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    // In kB, which are 1024 bytes.
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) * 1024;
  fail("lockstep bench wants VmHWM in /proc/self/status, found none: run it on Linux");
}

}  // namespace lockstep
