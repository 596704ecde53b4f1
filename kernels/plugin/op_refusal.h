#pragma once

#include "kernels/base/check.h"

namespace lockstep {

// A user's op says by a sentence that it does not compute a call, such as one of a dtype that it
// does not know. It has written nothing wrong: who runs a model stops, who tries ops one by one
// goes on.
class OpRefusal : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep
