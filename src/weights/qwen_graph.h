// Who reads whom in Qwen2, Qwen2.5, Qwen3 and Qwen3-MoE.
#pragma once

#include <vector>

#include "probes/graph.h"
#include "src/weights/config.h"

namespace lockstep {

// The traits of a model of these families that decide which nodes it has.
struct QwenShape {
  int layers = 0;
  bool qk_norm = false;
  std::vector<int> expert_layers = {};  // ascending; the others have one MLP for all tokens
  bool rope_tables = false;             // the cosines and sines that RoPE reads are shown
};
Graph qwen_graph(const QwenShape& shape);

// With the rotary tables: an engine that does not show them has a graph without (Point::optional).
Graph qwen_graph_of(const ModelConfig& config);

}  // namespace lockstep
