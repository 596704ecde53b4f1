// The graph of Qwen2, Qwen2.5, Qwen3 and Qwen3-MoE, made of the table of points: each row says what
// its op reads (Point::reads) and which models have it (Point::models). An engine's graph and that
// of a trace of which no more is known than its points are made by the same function.
#pragma once

#include <set>
#include <vector>

#include "probes/graph.h"

namespace lockstep {

// The traits of a model of these families that decide which nodes it has.
struct QwenShape {
  int layers = 0;
  bool qk_norm = false;
  std::set<int> expert_layers = {};  // the others have one MLP for all tokens
  bool rope_tables = false;          // the cosines and sines that RoPE reads are shown
  bool ranks = false;                // several compute it: what each adds to a sum is shown too
  bool shares = false;               // what attention is merged of is shown too

  // The least model that shows those places, and perhaps more.
  static QwenShape showing(const std::vector<Place>& places);
};

Graph qwen_graph(const QwenShape& shape);

}  // namespace lockstep
