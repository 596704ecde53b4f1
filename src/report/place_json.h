#pragma once

#include "probes/graph.h"

namespace lockstep {

// The layer of a place, or null outside the layers.
template <typename Json>
Json layer_json(const Place& place) {
  return place.layer < 0 ? Json(nullptr) : Json(place.layer);
}

}  // namespace lockstep
