#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "probes/graph.h"

namespace lockstep {

// Leads a request's tensor at a place back to the finding that it stems from, within a pass, and
// through what attention reads of earlier ones.
class Ancestry {
 public:
  // The values below are those of an op whose result was made of nothing but what is right.
  struct Origin {
    int finding = -1;   // number of the first finding upstream; -1: none
    int overflow = -1;  // index of the place upstream that overflows as it should; -1: none
    // Whether nobody judged the op, or, of a cache, one that wrote to it. Ops that were judged are
    // known to have made of their inputs what they should.
    bool unjudged = false;
  };

  // places: of the graph, in its order.
  Ancestry(const Graph& graph, const std::vector<Place>& places);

  const std::vector<Place>& inputs(size_t place) const { return inputs_[place]; }

  // Forgets the origins of the pass before, but for what it left in a cache, which attention of
  // later passes reads.
  void begin_pass() { origins_.clear(); }
  // Before a pass in which a request reads what others left in the caches: their origins are its.
  void inherit(int32_t heir, const std::vector<int32_t>& writers);
  // The origin of the inputs that the op at that place reads for the request.
  Origin of_inputs(size_t place, int32_t request) const;
  // Keeps the origin of the op's result. That of a cache stays until it is set again: later passes
  // read what this one wrote.
  void set(size_t place, int32_t request, const Origin& origin);
  Origin of(size_t place, int32_t request) const;

 private:
  using Key = std::pair<size_t, int32_t>;           // place, request
  std::vector<std::vector<Place>> inputs_;          // by place
  std::vector<std::vector<size_t>> input_indices_;  // the same as indices of places
  std::vector<bool> is_cache_;
  std::map<Key, Origin> origins_;
  std::map<Key, Origin> cached_;  // of places that are a K/V cache: what earlier passes left there
};

}  // namespace lockstep
