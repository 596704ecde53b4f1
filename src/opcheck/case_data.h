// The numbers of a case: the weights of its model and the passes that its op computes.
#pragma once

#include <vector>

#include "src/opcheck/op_grid.h"
#include "src/weights/checkpoint.h"
#include "traces/trace.h"

namespace lockstep {

// The checkpoint has all weights of a model of one layer, those that the op does not read being 0.
// Tensors are on the CPU, in the dtype that their point has in such a run; the rotary tables are
// fp32, choices of experts int32.
struct CaseData {
  Checkpoint checkpoint;
  Manifest manifest;
  // With the tensors that the op reads, but of a cache that it writes. Pages lie in no order.
  std::vector<Pass> passes;
};

// The same numbers in every call.
CaseData data_of(const GridCase& shape, const OpPlaces& places, DType dtype);

}  // namespace lockstep
