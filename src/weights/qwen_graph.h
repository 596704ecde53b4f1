#pragma once

#include "probes/qwen_graph.h"
#include "src/weights/config.h"

namespace lockstep {

// Who reads whom in a model of that configuration, with the rotary tables: an engine that does not
// show them has a graph without (Point::optional).
Graph qwen_graph_of(const ModelConfig& config);
// The same of one that several ranks compute, which show what each adds to a sum; or whose executor
// shows the shares that attention is merged of.
Graph qwen_graph_of(const ModelConfig& config, bool over_ranks, bool in_shares = false);

}  // namespace lockstep
