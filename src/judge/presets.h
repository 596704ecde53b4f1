// The rounding contracts of known engines, and of single points as a person names them.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "probes/graph.h"
#include "traces/trace.h"

namespace lockstep {

// The contracts of one engine in a 16-bit run, unless it says otherwise. An op without a line
// rounds once, at its store (fused). Of lines for one point the last one counts.
struct Preset {
  // One line of an engine's contracts: the ops of that kind round so, at those of their points.
  struct Line {
    OpKind op;
    std::string_view points;  // globs, with commas between; "": all points of the op
    RoundingContract contract;
    std::string_view source;  // where it can be read
  };

  std::string_view name;
  std::string_view says;  // one line for people
  std::span<const Line> lines;
};

// The one table of engines. To add one: its lines and its row in presets.cc.
std::span<const Preset> presets();

// By point name, of every point. Throws Error, with the nearest name, where there is none of that
// name.
std::map<std::string, RoundingContract> contracts_of_preset(std::string_view name);

// The contract that a person gives to some points.
struct PointRounding {
  std::string text;  // as it was asked for
  std::vector<const Point*> points;
  RoundingContract contract = RoundingContract::fused;

  // By name: the graph of an oracle, which is that of a trace that has none, is of the points of
  // the oracle's library.
  bool is_of(const Point& point) const;
};

// The meaning of a text POINT=CONTRACT, POINT being a glob, which stands for those of its points
// whose op can have the contract in some run. Throws Error where no point matches, where the
// contract is none, and where no point of the glob can have it.
PointRounding rounding_from(const std::string& text);

// Throws Error where no place of the graph, by what its op can have in a run, can round as asked.
void check_can_round(const PointRounding& asked, const Graph& graph,
                     const std::function<std::vector<RoundingContract>(const Place&)>& can_have);

}  // namespace lockstep
