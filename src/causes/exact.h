// Explanations of places that are held to their bits: of rows of the cache by who wrote what was
// read instead, of chosen indices by the order of what they are chosen from. Nothing is computed.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "src/judge/judge.h"

namespace lockstep {

// A node that was found wrong, and what explains it.
struct ExactNode {
  // How many of its wrong rows one explanation explains.
  struct Cause {
    std::string says;
    int64_t explained = 0;
  };
  int64_t wrong = 0;  // rows
  std::vector<Cause> causes;
};

// The nodes of a place of op cache, argmax or top_k in a pass that were found wrong.
std::vector<ExactNode> exact_nodes(const Pass& pass, const Place& place,
                                   const std::set<int32_t>& requests, const Manifest& manifest,
                                   const Judge& judge);

}  // namespace lockstep
