// The places of a model that one call of an op computes: of a single op one, of a fused op those of
// all its pieces.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "probes/graph.h"

namespace lockstep {

struct CallPlaces {
  std::string_view fused;      // its name in kFusedOps; "": a single op
  Place named;                 // that it names when it is called
  std::vector<Place> outputs;  // that it stores, in the order of the graph
  std::vector<Place> reads;    // that others made
  std::vector<Place> hidden;   // what lies between its pieces
};

// The call of the op at the place alone.
CallPlaces call_of(const Place& place, const Graph& graph);
// The call of the fused op of that name that stores the place. None: there is no such op, it stores
// no such place, or the model has not all of its pieces there.
std::optional<CallPlaces> fused_call_of(std::string_view fused, const Place& place,
                                        const Graph& graph);

// The name of the argument of lockstep_ops.h that holds an output; of a cache, and of K, which
// goes into one, "cache".
std::string_view argument_of(const CallPlaces& call, const Place& output);

}  // namespace lockstep
