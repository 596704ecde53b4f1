// Tells what is in a trace.
#pragma once

#include <string>

#include "probes/selection.h"
#include "src/report/document.h"
#include "traces/trace.h"

namespace lockstep {

// Selects the part of a trace that is looked at.
struct InspectOptions {
  std::string path, points, layers, requests, positions, format = "table";
  bool values = false;  // every number of the selected rows

  bool selects() const {
    return !(points.empty() && layers.empty() && requests.empty() && positions.empty());
  }
  Selection selection() const { return {points, layers, positions, requests}; }
  // Whoever asks for a layer does not want what is of none, which a Selection lets through.
  bool has(const RecordedTensor& t) const { return layers.empty() || t.layer >= 0; }
};

// Without a selection a line for every place, in graph order; with one a line for every tensor that
// has selected rows, their magnitudes and their largest numbers, or every number. In a format other
// than the table's, one table alone. Throws Error when nothing is selected, or when numbers are
// wanted and the trace has none.
Document inspect(TraceReader& trace, const InspectOptions& options);

}  // namespace lockstep
