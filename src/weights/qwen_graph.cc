#include "src/weights/qwen_graph.h"

#include <algorithm>

namespace lockstep {
namespace {

// A point by name; one that is not in the table does not compile.
struct Name {
  consteval Name(const char* name) : point(lockstep::point(name)) {}
  const Point& point;
};

class Maker {
 public:
  explicit Maker(const QwenShape& shape) : shape_(shape) {}

  Graph make() {
    int stream = add("embed", {});
    if (shape_.rope_tables) tables_ = {add("rope.cos", {}), add("rope.sin", {})};
    for (layer_ = 0; layer_ < shape_.layers; ++layer_) stream = add_layer(stream);
    layer_ = -1;
    const int logits = add("logits", {add("final.norm", {stream})});
    add("token", {logits});
    return std::move(graph_);
  }

 private:
  int add(Name name, std::vector<int> inputs) {
    return graph_.add({&name.point, layer_}, std::move(inputs));
  }

  int add_layer(int stream) {
    const int attended = add("attn.residual", {stream, add_attention(add("attn.norm", {stream}))});
    const int norm = add("mlp.norm", {attended});
    const bool experts = std::ranges::binary_search(shape_.expert_layers, layer_);
    return add("mlp.residual", {attended, experts ? add_experts(norm) : add_mlp(norm)});
  }

  int add_attention(int norm) {
    int q = add("attn.q", {norm}), k = add("attn.k", {norm});
    const int v = add("attn.v", {norm});
    if (shape_.qk_norm) {
      q = add("attn.q_norm", {q});
      k = add("attn.k_norm", {k});
    }
    q = add("attn.q_rope", with_tables(q));
    k = add("attn.k_rope", with_tables(k));
    return add("attn.o", {add("attn.out", {q, add("attn.kv", {k, v})})});
  }

  std::vector<int> with_tables(int x) const {
    std::vector<int> inputs = {x};
    inputs.insert(inputs.end(), tables_.begin(), tables_.end());
    return inputs;
  }

  int add_mlp(int norm) {
    const int gate = add("mlp.gate", {norm}), up = add("mlp.up", {norm});
    return add("mlp.down", {add("mlp.act", {gate, up})});
  }

  int add_experts(int norm) {
    const int router = add("mlp.router", {norm}), chosen = add("mlp.experts", {router});
    const int weights = add("mlp.weights", {router, chosen});
    const int gate = add("mlp.expert_gate", {norm, chosen});
    const int up = add("mlp.expert_up", {norm, chosen});
    const int down = add("mlp.expert_down", {add("mlp.expert_act", {gate, up}), chosen});
    return add("mlp.combine", {down, weights, chosen});
  }

  const QwenShape& shape_;
  Graph graph_;
  std::vector<int> tables_;
  int layer_ = -1;
};

}  // namespace

Graph qwen_graph(const QwenShape& shape) { return Maker(shape).make(); }

Graph qwen_graph_of(const ModelConfig& config) {
  return qwen_graph({static_cast<int>(config.layers), config.qk_norm, config.experts.layers,
                     /*rope_tables=*/true});
}

}  // namespace lockstep
