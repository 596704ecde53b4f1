#include "src/judge/ancestry.h"

#include <algorithm>

namespace lockstep {
namespace {

int first_of(int a, int b) { return a < 0 || (b >= 0 && b < a) ? b : a; }

Ancestry::Origin joined(const Ancestry::Origin& a, const Ancestry::Origin& b) {
  return {first_of(a.finding, b.finding), first_of(a.overflow, b.overflow),
          a.unjudged || b.unjudged};
}

}  // namespace

// Inputs are looked up once: they are asked for at every node.
Ancestry::Ancestry(const Graph& graph, const std::vector<Place>& places) {
  for (const Place& place : places) {
    inputs_.push_back(graph.inputs_of(place));
    is_cache_.push_back(place.point->is_cache());
    std::vector<size_t>& indices = input_indices_.emplace_back();
    for (const Place& input : inputs_.back())
      indices.push_back(std::ranges::find(places, input) - places.begin());
  }
}

Ancestry::Origin Ancestry::of(size_t place, int32_t request) const {
  const auto found = origins_.find({place, request});
  return found == origins_.end() ? Origin{} : found->second;
}

// An error comes from the first wrong op among the inputs' origins, or, by the cache, from one of
// an earlier pass.
Ancestry::Origin Ancestry::of_inputs(size_t place, int32_t request) const {
  Origin origin;
  for (const size_t input : input_indices_[place]) origin = joined(origin, of(input, request));
  const auto found = cached_.find({place, request});
  return found == cached_.end() ? origin : joined(origin, found->second);
}

void Ancestry::inherit(int32_t heir, const std::vector<int32_t>& writers) {
  for (size_t place = 0; place < is_cache_.size(); ++place)
    for (const int32_t writer : writers)
      if (const auto found = cached_.find({place, writer}); found != cached_.end()) {
        Origin& own = cached_[{place, heir}];
        own = joined(own, found->second);
      }
}

void Ancestry::set(size_t place, int32_t request, const Origin& origin) {
  // Nearly all of a run is right, and a place and request without an origin have that one.
  const auto keep = [&](std::map<Key, Origin>& kept) {
    if (origin.finding < 0 && origin.overflow < 0 && !origin.unjudged)
      kept.erase({place, request});
    else
      kept[{place, request}] = origin;
  };
  keep(origins_);
  if (is_cache_[place]) keep(cached_);
}

}  // namespace lockstep
