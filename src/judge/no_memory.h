#pragma once

#include "kernels/base/check.h"

namespace lockstep {

// An oracle or model has no memory left for what it was asked. About fewer rows it may still have
// an answer (halving_oracle.h).
class NoMemory : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep
