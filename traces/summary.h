#pragma once

#include "probes/graph.h"
#include "traces/columns.h"
#include "traces/hdf5_file.h"

namespace lockstep {

// Writes /summary, the NXdata group that viewers draw without code: rms, absmax, mean and nonfinite
// as [pass, layer, point], NaN where there is no tensor. Layer -1 is what is not of a layer. The
// caches of several requests count as one tensor. All four are fp64; rms and mean are over the
// elements that are finite, and tensors of which hashes alone were made count as none.
void write_summary(const Columns& columns, const Graph& graph, Hdf5File& file);

}  // namespace lockstep
