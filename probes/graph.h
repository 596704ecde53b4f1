#pragma once

#include <string>
#include <vector>

#include "probes/points.h"
#include "probes/selection.h"

namespace lockstep {

// What of a model decides which nodes it has.
struct Graph {
  int layers = 0;
  bool qk_norm = false;
  std::vector<int> expert_layers;  // that have experts, ascending; the others have one MLP
  bool rope_tables = false;        // the cosines and sines that RoPE reads are shown

  bool operator==(const Graph&) const = default;
};

// "3 layers with QK-norm, 2 of them with experts", for people.
std::string text_of(const Graph& graph);

// A point of one layer (layer is -1 for the points that are not of a layer).
struct Place {
  const Point* point = nullptr;
  int layer = -1;
  // By the point's name: a shared library has a table of points of its own.
  bool operator==(const Place& other) const {
    if (!point || !other.point) return point == other.point && layer == other.layer;
    return *point == *other.point && layer == other.layer;
  }
};

// Every place of the model in the order in which it computes them.
std::vector<Place> places_of(const Graph& graph);

// The places whose tensors the op at `place` reads, in the order of its point's `inputs`. Empty for
// embed, which reads tokens.
std::vector<Place> inputs_of(const Graph& graph, const Place& place);

// What must be seen to judge the selected places: they, what their ops read, what a K/V cache that
// is read was written from, which experts rows went to, and logits and tokens. In the order of
// places_of.
std::vector<Place> places_to_judge(const Graph& graph, const Selection& selection);

}  // namespace lockstep
