// Traces that other programs write with HDF5 alone (README.md, The least trace): tokens, rows and
// tensors. All else is made here when it is read.
#pragma once

#include <memory>
#include <string>

#include "traces/trace.h"

namespace lockstep {

inline constexpr const char* kUnsealed =
    "unsealed: made by another program; hashes were computed now";

// Throws Error, in the words of README.md, when something is missing or does not fit. The memory
// that it takes is in proportion to the file. The first reading of a pass makes its digests, and
// takes as long as hashing its tensors does.
std::unique_ptr<TraceReader> open_bare(const std::string& path);

// The provenance's name for the rounding contracts as one text: a set of them (src/judge/presets.h)
// which whoever judges the trace resolves.
inline constexpr const char* kSchema = "schema";

}  // namespace lockstep
