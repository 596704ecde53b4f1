#pragma once

#include "probes/selection.h"
#include "src/diff/diff.h"
#include "traces/trace.h"

namespace lockstep {

// Enters into a comparison what the traces say beside numbers: the dtype and the contracts that
// they declare, where K and V lie, and which tokens requests found in the cache. Where K and V lie
// may differ between two right runs, so that it is a remark; but what has the same bits is not said
// to be the same without it. b: with the numbers of a's requests.
void compare_storage(TraceReader& a, TraceReader& b, const Selection& selection,
                     DiffResult& result);

}  // namespace lockstep
