// Traces that other programs write with HDF5 alone (README.md, The least trace): tokens, rows and
// tensors. All else is made here when it is read.
#pragma once

#include <memory>
#include <string>

#include "probes/graph.h"
#include "traces/trace.h"

namespace lockstep {

inline constexpr const char* kUnsealed =
    "unsealed: made by another program; hashes were computed now";

// Throws Error, in the words of README.md, when something is missing or does not fit. The memory
// that it takes is in proportion to the file.
std::unique_ptr<TraceReader> open_bare(const std::string& path);

// The graph of a model that shows those places, and perhaps more: of these families, whose points
// say what they read. QK-norm, rotary tables and experts are there where they are shown. Throws
// Error for a layer beyond kMostLayers.
Graph graph_of_points(const std::vector<Place>& shown);

// The provenance's name for the rounding contracts as one text: a set of them (src/judge/presets.h)
// which whoever judges the trace resolves.
inline constexpr const char* kSchema = "schema";

}  // namespace lockstep
