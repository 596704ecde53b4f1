// A trace at a glance, from its digests alone: no tensor is read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/report/document.h"
#include "traces/trace.h"

namespace lockstep {

struct TraceTotals {
  // A place's digests over all passes: counts, range and sums.
  struct PlaceTotal {
    Place place;
    Digest digest;
    bool hashes_alone = false;
    DType dtype = DType::f32;
    int64_t tensors = 0, rows = 0;
  };

  // The first tensor, in the order of the computation, that holds NaN or Inf.
  struct FirstNonFinite {
    int32_t pass = 0;
    Place place;
    int64_t nan = 0, inf = 0, elements = 0;
  };

  std::vector<PlaceTotal> places;  // in the order of the graph
  std::optional<FirstNonFinite> first;
  std::vector<Place> recorded_with_numbers;
};
// Reads every digest of the trace, pass by pass, and no numbers.
TraceTotals totals_of(TraceReader& trace);

// The overview: what the trace is, where it comes from, its requests, where NaN begins, and the
// size of its numbers by layer and point.
std::vector<Block> overview_of(TraceReader& trace, const TraceTotals& totals,
                               const std::string& path);

// A line for each request of each pass: its rows, its pages, the slots that it wrote, and its edges
// and length as an attention kernel gets them.
Table passes_of(TraceReader& trace);

// At most four characters for a number that is read at a glance: ".83" "1.7" "345" "2e4" "NaN".
std::string number_in_four(double value);

}  // namespace lockstep
