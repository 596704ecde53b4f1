#pragma once

#include "kernels/base/check.h"

namespace lockstep {

// There is no memory left for what LibTorch was asked: in_torch() makes it of LibTorch's own error.
class NoMemory : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep
