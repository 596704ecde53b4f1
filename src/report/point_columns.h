#pragma once

#include <vector>

#include "probes/graph.h"

namespace lockstep {

// The points of layers that some layer among the places has, in the order in which a layer computes
// them: the columns of a map of layers and points. Points are rows of the constant table.
std::vector<const Point*> layer_columns(const std::vector<Place>& places);

}  // namespace lockstep
