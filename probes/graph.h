#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "probes/points.h"
#include "probes/selection.h"

namespace lockstep {

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

// A model's computation as data: a node for every place where a tensor can be seen, in the order
// in which the model computes them, and which nodes each one reads. The model's family makes it, a
// trace carries it.
//
//   embed -> attn.norm@0 -> attn.q@0 -> ... -> mlp.residual@0 -> attn.norm@1 -> ... -> token
//        \-------------------------- attn.residual@0 --/
// Adding is for one thread; a graph that is finished may be asked by several.
class Graph {
 public:
  // Adds a node that reads those nodes, in the order of the op's arguments, and returns its number.
  // Throws Error when the place is there already, or when an input is no earlier node.
  int add(const Place& place, std::vector<int> inputs);

  const std::vector<Place>& places() const& { return places_; }
  std::vector<Place> places() && { return std::move(places_); }  // of a graph that nobody keeps
  std::span<const int> inputs(int64_t node) const { return inputs_.at(node); }
  // The places that the op at `place` reads. Empty for embed, which reads tokens, and for a place
  // that the model does not have.
  std::vector<Place> inputs_of(const Place& place) const;
  // The node's number; -1: the model has no such place. In constant time.
  int index_of(const Place& place) const;
  bool has(const Place& place) const { return index_of(place) >= 0; }
  int layers() const { return layers_; }  // one more than the last layer of a node

  // The nodes that `keep` wants; the others are no longer read either.
  Graph restricted(const std::function<bool(const Place&)>& keep) const;
  // Everything that must be seen to judge the selected places: they, what their ops read, what a
  // K/V cache that is read was written from, which experts rows went to, and logits and tokens. In
  // the order of places().
  std::vector<Place> places_to_judge(const Selection& selection) const;
  bool operator==(const Graph& other) const {
    return places_ == other.places_ && inputs_ == other.inputs_;
  }

 private:
  std::vector<Place> places_;
  std::vector<std::vector<int>> inputs_;
  std::vector<int> numbers_;  // by layer + 1 and order of the point; -1: none
  int layers_ = 0;
};

// "3 layers with QK-norm, 2 of them with experts", for people.
std::string text_of(const Graph& graph);

}  // namespace lockstep
