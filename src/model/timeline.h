#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

// The time of one piece of work of a queue (a thread, a multiprocessor), in ns of one clock: when
// the queue came to it, had what it waits for, and ended it.
struct TimedWork {
  int queue = 0;
  std::string name;
  int layer = -1;   // -1: of none
  int number = -1;  // of the instruction; -1: it has none
  int64_t begin = 0, waited = 0, end = 0;
};

// When the last step computed what. An executor that was asked for it puts a function in here when
// it has a step to tell of, which gives that of the last one; it holds as long as the executor's
// maker does.
struct Timeline {
  std::function<std::vector<TimedWork>()> last;  // empty: no step yet
};

// In the Trace Event Format, which Perfetto and chrome://tracing open: a row a queue, of each work
// a slice, and within it one for what it waited. Times are from the first begin on. Source: Google,
// "Trace Event Format", the complete events ("X").
std::string chrome_trace(std::span<const TimedWork> all);

}  // namespace lockstep
