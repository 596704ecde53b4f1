#pragma once

#include "probes/graph.h"
#include "traces/columns.h"
#include "traces/hdf5_file.h"

namespace lockstep {

// Writes /summary, the NXdata group that viewers draw without code: rms, absmax, mean and nonfinite
// as [pass, layer, point], NaN where there is no tensor. Layer -1 is what is not of a layer. The
// caches of several requests count as one tensor.
void write_summary(const Columns& columns, const Graph& graph, Hdf5File& file);

}  // namespace lockstep
