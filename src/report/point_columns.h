#pragma once

#include <string_view>
#include <vector>

#include "probes/graph.h"

namespace lockstep {

// The name of a point above its column of a map, at most three characters: "qr" of attn.q_rope.
std::string_view column_name_of(const Point& point);

// The points of layers that some layer among the places has, in the order in which a layer computes
// them: the columns of a map of layers and points.
std::vector<const Point*> layer_columns(const std::vector<Place>& places);

}  // namespace lockstep
