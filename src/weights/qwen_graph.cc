#include "src/weights/qwen_graph.h"

namespace lockstep {

Graph qwen_graph_of(const ModelConfig& config, bool over_ranks, bool in_shares) {
  const std::vector<int>& experts = config.experts.layers;
  return qwen_graph({.layers = static_cast<int>(config.layers),
                     .qk_norm = config.qk_norm,
                     .expert_layers = {experts.begin(), experts.end()},
                     .rope_tables = true,
                     .ranks = over_ranks,
                     .shares = in_shares});
}

Graph qwen_graph_of(const ModelConfig& config) { return qwen_graph_of(config, false); }

}  // namespace lockstep
