#include "traces/place_reader.h"

namespace lockstep {

Pass read_places(TraceReader& trace, int i, const WantedPlaces& wanted) {
  auto* in_part = dynamic_cast<PlaceReader*>(&trace);
  return in_part == nullptr ? trace.read(i, /*data=*/true) : in_part->read_places(i, wanted);
}

}  // namespace lockstep
