#pragma once

#include <fmt/format.h>

#include <string_view>

#include "kernels/base/check.h"

namespace lockstep {

// An oracle or model has no memory left for what it was asked. About fewer rows it may still have
// an answer (halving_oracle.h).
class NoMemory : public Error {
 public:
  using Error::Error;
};

// Throws it. lacks: what there was no memory for, as "3 GiB".
[[noreturn]] inline void fail_for_memory(std::string_view lacks) {
  throw NoMemory(
      fmt::format("the reference has no memory left for {} more: judge some --layers or --points "
                  "at a time, or fewer tokens a pass (--chunk, --budget), or free memory there",
                  lacks));
}

}  // namespace lockstep
