#include "src/report/point_columns.h"

#include <algorithm>

namespace lockstep {

// Points of a layer that occur, in the order in which they are computed.
std::vector<const Point*> layer_columns(const std::vector<Place>& places) {
  std::vector<const Point*> columns;
  for (const Point& point : kPoints)
    if (point.per_layer &&
        std::ranges::any_of(places, [&](const Place& p) { return *p.point == point; }))
      columns.push_back(&point);
  return columns;
}

}  // namespace lockstep
