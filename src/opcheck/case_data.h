// The numbers of a case: the weights of its model and the passes that its op computes.
#pragma once

#include <vector>

#include "src/opcheck/op_grid.h"
#include "src/weights/checkpoint.h"
#include "traces/trace.h"

namespace lockstep {

struct CaseData {
  Checkpoint checkpoint;
  Manifest manifest;
  // With the tensors that the op reads, but of a cache that it writes. Pages lie in no order.
  std::vector<Pass> passes;
};

// The same numbers in every call.
CaseData data_of(const GridCase& shape, const OpPlaces& places, DType dtype);

}  // namespace lockstep
