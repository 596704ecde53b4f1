// Nodes are numbered in the order in which they are added, which is that of the computation, and
// found by place in constant time, through a table of layer by order of the point.
#include "probes/graph.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

size_t slot_of(const Place& place) {
  return (place.layer + 1) * kPoints.size() + place.point->order();
}

}  // namespace

int Graph::add(const Place& place, std::vector<int> inputs) {
  const int number = static_cast<int>(places_.size());
  check(place.point->per_layer == (place.layer >= 0),
        "the graph has {} of layer {}, and that point is {} a layer", place.point->name,
        place.layer, place.point->per_layer ? "of" : "not of");
  check(!has(place), "the graph has {} of layer {} twice", place.point->name, place.layer);
  for (const int input : inputs)
    check(input >= 0 && input < number,
          "the graph's node {} ({} of layer {}) reads node {}, which is not before it", number,
          place.point->name, place.layer, input);
  layers_ = std::max(layers_, place.layer + 1);
  numbers_.resize((layers_ + 1) * kPoints.size(), -1);
  numbers_[slot_of(place)] = number;
  places_.push_back(place);
  inputs_.push_back(std::move(inputs));
  return number;
}

std::vector<Place> Graph::inputs_of(const Place& place) const {
  std::vector<Place> read;
  if (const int node = index_of(place); node >= 0)
    for (const int input : inputs(node)) read.push_back(places_[input]);
  return read;
}

int Graph::index_of(const Place& place) const {
  if (place.layer < -1 || place.layer >= layers_ || numbers_.empty()) return -1;
  return numbers_[slot_of(place)];
}

// Numbers of nodes change; a node whose input is left out reads one less.
Graph Graph::restricted(const std::function<bool(const Place&)>& keep) const {
  Graph kept;
  std::vector<int> number(places_.size(), -1);
  for (size_t i = 0; i < number.size(); ++i) {
    if (!keep(places_[i])) continue;
    std::vector<int> kept_inputs;
    for (const int input : inputs_[i])
      if (const int to = number[input]; to >= 0) kept_inputs.push_back(to);
    number[i] = kept.add(places_[i], std::move(kept_inputs));
  }
  return kept;
}

std::string text_of(const Graph& graph) {
  const auto count = [&](const Point& p) {
    return std::ranges::count_if(graph.places(), [&](const Place& at) { return *at.point == p; });
  };
  std::string text = fmt::format("{} layers", graph.layers());
  if (count(point("attn.q_norm")) > 0) text += " with QK-norm";
  if (const auto experts = count(point("mlp.experts")); experts > 0)
    text += fmt::format(", {} of them with experts", experts);
  return text;
}

const Point* find_point(std::string_view name) {
  for (const Point& p : kPoints)
    if (p.name == name) return &p;
  return nullptr;
}

// std::less orders pointers of different arrays too, where < need not.
int Point::order() const {
  const std::less<const Point*> before;
  const bool ours = !before(this, kPoints.data()) && before(this, kPoints.data() + kPoints.size());
  return static_cast<int>((ours ? this : find_point(name)) - kPoints.data());
}

// Logits, tokens and routes are needed whatever is selected: tokens are explained by them, and the
// models follow the routes.
std::vector<Place> Graph::places_to_judge(const Selection& selection) const {
  std::vector<bool> needed(places_.size());
  for (size_t i = places_.size(); i-- > 0;) {  // readers before what they read
    const Point& p = *places_[i].point;
    const bool selected = selection.has(p, places_[i].layer);
    const bool routes = p == point("mlp.router") || p == point("mlp.experts");
    needed[i] = needed[i] || selected || routes || p.rows == RowDomain::logit;
    if (!selected && !(needed[i] && p.is_cache())) continue;
    for (const int input : inputs_[i]) needed[input] = true;
  }
  std::vector<Place> found;
  for (size_t i = 0; i < places_.size(); ++i)
    if (needed[i]) found.push_back(places_[i]);
  return found;
}

}  // namespace lockstep
