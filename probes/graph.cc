#include "probes/graph.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

bool has(const Graph& graph, const Point& p, int layer) {
  const bool experts = std::ranges::binary_search(graph.expert_layers, layer);
  switch (p.presence) {
    case Presence::always:
      break;
    case Presence::qk_norm:
      return graph.qk_norm;
    case Presence::dense:
      return !experts;
    case Presence::experts:
      return experts;
    case Presence::rope_tables:
      return graph.rope_tables;
  }
  return true;
}

Place resolve(const Graph& graph, std::string_view name, int layer) {
  if (name == "stream") {
    if (layer == 0 || graph.layers == 0) return {&point("embed"), -1};
    return {&point("mlp.residual"), (layer < 0 ? graph.layers : layer) - 1};
  }
  if (name == "mlp.combine" && !has(graph, point("mlp.combine"), layer)) name = "mlp.down";
  const Point* p = find_point(name);
  check(p != nullptr, "the table of points names '{}' as an input, but has no such point", name);
  while (!has(graph, *p, layer)) p = find_point(p->inputs[0]);
  return {p, p->per_layer ? layer : -1};
}

}  // namespace

std::string text_of(const Graph& graph) {
  std::string text = fmt::format("{} layers", graph.layers);
  if (graph.qk_norm) text += " with QK-norm";
  if (!graph.expert_layers.empty())
    text += fmt::format(", {} of them with experts", graph.expert_layers.size());
  return text;
}

const Point* find_point(std::string_view name) {
  for (const Point& p : kPoints)
    if (p.name == name) return &p;
  return nullptr;
}

std::vector<Place> places_of(const Graph& graph) {
  std::vector<Place> places;
  size_t first = 0;
  const auto add = [&](const Point& p, int layer) {
    if (has(graph, p, layer)) places.push_back({&p, layer});
  };
  while (first < kPoints.size() && !kPoints[first].per_layer) add(kPoints[first++], -1);
  size_t last = first;
  while (last < kPoints.size() && kPoints[last].per_layer) ++last;
  for (int layer = 0; layer < graph.layers; ++layer)
    for (size_t i = first; i < last; ++i) add(kPoints[i], layer);
  for (size_t i = last; i < kPoints.size(); ++i) add(kPoints[i], -1);
  return places;
}

std::vector<Place> inputs_of(const Graph& graph, const Place& place) {
  std::vector<Place> inputs;
  for (std::string_view name : place.point->inputs) {
    const bool tables = name == "rope.cos" || name == "rope.sin";
    if (!name.empty() && (!tables || graph.rope_tables))
      inputs.push_back(resolve(graph, name, place.layer));
  }
  return inputs;
}

std::vector<Place> places_to_judge(const Graph& graph, const Selection& selection) {
  const std::vector<Place> places = places_of(graph);
  std::vector<bool> needed(places.size());
  for (size_t i = places.size(); i-- > 0;) {  // readers before what they read
    const Point& p = *places[i].point;
    const bool selected = selection.has(p, places[i].layer);
    const bool routes = p == point("mlp.router") || p == point("mlp.experts");
    needed[i] = needed[i] || selected || routes || p == point("logits") || p == point("token");
    if (!selected && !(needed[i] && p.op == OpKind::cache)) continue;
    for (const Place& input : inputs_of(graph, places[i]))
      needed[static_cast<size_t>(std::ranges::find(places, input) - places.begin())] = true;
  }
  std::vector<Place> found;
  for (size_t i = 0; i < places.size(); ++i)
    if (needed[i]) found.push_back(places[i]);
  return found;
}

}  // namespace lockstep
