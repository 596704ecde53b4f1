// A file of limits.
#include "src/judge/limits.h"

#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

void read(std::string_view input) {
  const Limits limits = Limits::read(write("limits.json", input));
  limits.name();
  if (!(Limits::read(write("again.json", limits.json())) == limits))
    wrong("limits are others when they were written and read again");
}

}  // namespace lockstep::fuzz
