// The fused ops of a table, made of its other entries: what a right one gives.
#pragma once

#include "kernels/ops.h"

namespace lockstep {

// Each calls copies of the entries that `ops` has now. The pieces are called under the name that
// the fused op is called by.
FusedOps by_pieces(const Ops& ops);

}  // namespace lockstep
