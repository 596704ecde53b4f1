// A fused op is found in a model by one of its outputs: its pieces are then the places of the same
// layer, but for a norm, which may be of the layer after the sum that it reads.
#include "src/replay/call_places.h"

#include <algorithm>
#include <initializer_list>

#include "kernels/base/check.h"
#include "kernels/fused.h"

namespace lockstep {
namespace {

using PointNames = std::initializer_list<std::string_view>;

std::vector<Place> of_layer(const Graph& graph, int layer, PointNames names) {
  std::vector<Place> all;
  for (const std::string_view name : names)
    if (const Place place{find_point(name), layer}; place.point && graph.has(place))
      all.push_back(place);
  return all;
}

// A sum and the norm that reads it.
std::vector<Place> sum_and_norm(const Graph& graph, const Place& place) {
  for (const Place& norm : graph.places()) {
    if (norm.point->op != OpKind::norm) continue;
    const std::vector<Place> read = graph.inputs_of(norm);
    if (read.empty() || read[0].point->op != OpKind::add) continue;
    if (norm == place || read[0] == place) return {read[0], norm};
  }
  return {};
}

// Places that the pieces read and no piece makes.
std::vector<Place> read_by(const CallPlaces& call, const Graph& graph) {
  std::vector<Place> own = call.outputs, all;
  own.insert(own.end(), call.hidden.begin(), call.hidden.end());
  for (const Place& place : own)
    for (const Place& input : graph.inputs_of(place))
      if (std::ranges::count(own, input) == 0 && std::ranges::count(all, input) == 0)
        all.push_back(input);
  return all;
}

}  // namespace

CallPlaces call_of(const Place& place, const Graph& graph) {
  return {.fused = "",
          .named = place,
          .outputs = {place},
          .reads = graph.inputs_of(place),
          .hidden = {}};
}

std::optional<CallPlaces> fused_call_of(std::string_view fused, const Place& place,
                                        const Graph& graph) {
  const auto row = std::ranges::find(kFusedOps, fused, &FusedRow::name);
  if (row == kFusedOps.end()) return {};
  CallPlaces call{.fused = row->name, .named = {}, .outputs = {}, .reads = {}, .hidden = {}};
  size_t pieces = 0;
  if (fused == kAddRmsNorm.name) {
    call.outputs = sum_and_norm(graph, place);
    pieces = 2;
  } else if (fused == kQkvMatmul.name) {
    call.outputs = of_layer(graph, place.layer, {"attn.q", "attn.k", "attn.v"});
    pieces = 3;
  } else if (fused == kQkNormRopeKvWrite.name) {
    call.outputs = of_layer(graph, place.layer, {"attn.q_rope", "attn.k_rope", "attn.kv"});
    pieces = 3;
  } else if (fused == kGateUpSilu.name) {
    call.outputs = of_layer(graph, place.layer, {"mlp.act"});
    pieces = 1;
  }
  if (call.outputs.size() != pieces || std::ranges::count(call.outputs, place) == 0) return {};
  call.hidden = of_layer(graph, place.layer, {row->hidden[0], row->hidden[1]});
  const bool of_cache = call.outputs.back().point->is_cache();
  call.named = of_cache ? call.outputs.back() : call.outputs.front();
  call.reads = read_by(call, graph);
  return call;
}

std::string_view argument_of(const CallPlaces& call, const Place& output) {
  const Point& p = *output.point;
  const bool of_cache = call.outputs.back().point->is_cache();
  if (p.is_cache() || (of_cache && p.name == "attn.k_rope")) return "cache";
  if (call.fused == kAddRmsNorm.name && p.op == OpKind::add) return "sum";
  if (call.fused == kQkvMatmul.name) return p.name.substr(p.name.size() - 1);
  return call.fused == kQkNormRopeKvWrite.name ? "q_rope" : "out";
}

}  // namespace lockstep
