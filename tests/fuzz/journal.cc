// A journal, with what may be kept behind it.
#include "tests/fuzz/target.h"
#include "traces/kept_result.h"
#include "traces/trace.h"

namespace lockstep::fuzz {

void read(std::string_view input) {
  const std::string path = write("x.jsonl", input);
  read_kept_result(path);
  can_keep_result(path);
  const auto trace = open_trace(path);
  for (int i = 0; i < trace->passes(); ++i) trace->read(i, true);
  if (!trace->complete() && trace->problems().empty()) wrong("a trace is incomplete, and silent");
}

}  // namespace lockstep::fuzz
