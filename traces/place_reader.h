// Passes read in part: of large traces, whoever wants one op reads no other tensor.
#pragma once

#include <functional>

#include "traces/trace.h"

namespace lockstep {

using WantedPlaces = std::function<bool(const Place& place)>;

// A reader that need not read all of a pass. Readers that keep tensors one by one are this too;
// read_places() finds out by a cast.
class PlaceReader {
 public:
  virtual ~PlaceReader() = default;
  // Pass i with the numbers of those places; tensors of others may be left out, and have none.
  virtual Pass read_places(int i, const WantedPlaces& wanted) = 0;
};

// The same of any reader: of one that reads passes as a whole, others may have numbers too.
Pass read_places(TraceReader& trace, int i, const WantedPlaces& wanted);

}  // namespace lockstep
