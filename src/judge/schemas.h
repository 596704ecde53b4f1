#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "src/judge/ledger.h"
#include "traces/trace.h"

namespace lockstep {

// Under which schema each point is judged: the declared one, or, where a trace declares none, the
// strictest that the first places of the point fit. A place fits what it passes; a looser schema
// than the others of its point need, or a stricter one, is a finding: one kernel rounds in one way.
class Schemas {
 public:
  explicit Schemas(const std::map<std::string, Schema>& declared) : declared_(declared) {}

  // What a node of the point is to be judged under, strictest first: all that are allowed where
  // none is declared.
  std::span<const Schema> candidates(const Point& point) const;
  // Which of the candidates' outcomes, of which there are as many, counts. `telling`: the node has
  // enough rows and elements that a looser schema would have shown.
  size_t choose(const Place& place, std::span<const NodeOutcome> outcomes, bool telling);
  // What the nodes of the point so far were, and the nodes to come are judged under.
  Schema of(const Point& point) const;

  // "attn.norm is judged as hf, which it was found to be", one a point.
  std::vector<std::string> notes() const;
  // The places that round otherwise than most of their point.
  std::vector<std::pair<Place, std::string>> strangers() const;

 private:
  struct Votes {
    const Point* point = nullptr;
    std::map<int, size_t> by_layer;  // number of the strictest candidate that all its nodes fit
    bool frozen = false;
    size_t chosen = 0;
  };
  static size_t most_frequent(const Votes& votes);

  std::map<std::string, Schema> declared_;
  std::map<int, Votes> votes_;  // by order of the point
};

}  // namespace lockstep
