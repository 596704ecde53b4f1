// A baseline of `lockstep check`.
#include "src/check/baseline.h"

#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

void read(std::string_view input) {
  const Baseline baseline = read_baseline(write("x.json", input));
  baseline.limits();
  const std::string again = json_of(baseline);
  if (json_of(read_baseline(write("again.json", again))) != again)
    wrong("a baseline is another when it was written and read again");
}

}  // namespace lockstep::fuzz
