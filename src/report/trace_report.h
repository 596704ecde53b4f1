// Tells what is in a trace.
#pragma once

#include <string>

#include "probes/selection.h"
#include "src/report/document.h"
#include "traces/trace.h"

namespace lockstep {

// Selects the part of a trace that is looked at, and how.
struct InspectOptions {
  std::string path, points, layers, requests, positions, format = "table";
  std::string heads, slice;  // of the elements of a row (element_filter.h)
  bool values = false;       // every number of what is selected
  bool passes = false;       // rows, page tables and slots of each pass
  bool provenance = false;   // every fact about where it comes from
  std::string npy;           // file for what is selected of one place; empty: none
  std::string against;       // another trace, compared with in the same rows; empty: none
  int width = 80;            // columns that pictures may take

  bool selects() const {
    return !(points.empty() && layers.empty() && requests.empty() && positions.empty() &&
             heads.empty() && slice.empty());
  }
  Selection selection() const { return {points, layers, positions, requests}; }
  // Whoever asks for a layer does not want what is of none, which a Selection lets through.
  bool has(const RecordedTensor& t) const { return layers.empty() || t.layer >= 0; }
};

// The answer to what was asked of a trace.
struct Inspected {
  Document document;
  bool whole = true;         // so is each trace that was read
  bool differs = false;      // they do, with --against
  bool compared_all = true;  // nothing that is selected lacked the numbers to be compared
};

// Without a selection the trace at a glance, and as data a line for every place, in graph order;
// with one a line for every tensor that has selected rows, a picture of the numbers, their
// magnitudes and the largest, or every number. In a format other than the table's, one table alone.
// Writes --npy. Throws Error when nothing is selected, or when numbers are wanted and the trace has
// none.
Inspected inspect(TraceReader& trace, const InspectOptions& options);

// 0; with --against 1 where the two differ; 2 where a trace is not whole, or where no difference
// was found in what could be compared and there is more.
int exit_status(const Inspected& inspected);

}  // namespace lockstep
