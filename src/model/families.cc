// The one place where a checkpoint's architecture decides anything: a graph, which the judge has
// too, and a forward pass.
#include <string>

#include "kernels/base/check.h"
#include "src/model/model.h"
#include "src/model/qwen.h"
#include "src/weights/qwen_graph.h"

namespace lockstep {
namespace {

struct Family {
  std::string_view architecture;
  Graph (*graph)(const ModelConfig&, bool over_ranks, bool in_shares);
  Forward (*forward)(const Model&, const Batch&, const std::vector<KvCache>&, Activations&, Probe&);
};

// To add a family: write its graph beside probes/qwen_graph.cc, its forward pass beside
// qwen.cc, its row here and in reference/families.cc, and teach its config.json to both readers,
// src/weights/config.cc and reference/recipe.cc. One that has the same blocks is three rows and its
// default there.
constexpr Family kFamilies[] = {
    {"Qwen2ForCausalLM", qwen_graph_of, qwen_forward},
    {"Qwen3ForCausalLM", qwen_graph_of, qwen_forward},
    {"Qwen3MoeForCausalLM", qwen_graph_of, qwen_forward},
};

const Family& family_of(const ModelConfig& config) {
  for (const Family& family : kFamilies)
    if (family.architecture == config.architecture) return family;
  fail("no family of models has the architecture {}", config.architecture);
}

}  // namespace

Graph graph_of(const ModelConfig& config) { return family_of(config).graph(config, false, false); }

Model::Model(const Checkpoint& checkpoint, DType dtype, Ops ops, Placement placement)
    : config_(checkpoint.config()),
      dtype_(dtype),
      ops_(std::move(ops)),
      fused_(whole_fused_ops(ops_)),
      placement_(std::move(placement)),
      weights_(checkpoint, dtype, placement_.device),
      activations_(config_, dtype, placement_.device),
      family_(family_of(config_).forward) {}

Graph Model::graph() const {
  return family_of(config_).graph(config_, placement_.over_ranks, placement_.in_shares);
}

KvCache Model::make_cache(int64_t pages, int64_t page_size, std::vector<Tensor>& storage) const {
  const Shape shape = {pages, page_size, config_.kv_heads, config_.head_dim};
  KvCache cache;
  for (TensorView* side : {&cache.k, &cache.v})
    *side = storage.emplace_back(shape, dtype_, placement_.device).view();
  return cache;
}

Forward Model::forward(const Batch& batch, const std::vector<KvCache>& caches, Probe& probe) {
  return forward(batch, caches, probe, activations_);
}

Forward Model::forward(const Batch& batch, const std::vector<KvCache>& caches, Probe& probe,
                       Activations& activations) const {
  activations.resize(batch.size(), batch.logit_rows.view().count());
  probe.begin(batch.info);
  const Forward forward = family_(*this, batch, caches, activations, probe);
  probe.end();
  return forward;
}

}  // namespace lockstep
