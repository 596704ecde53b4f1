// The graph of a model of which no more is known than the points that a trace shows.
#include <algorithm>
#include <set>

#include "kernels/base/check.h"
#include "traces/bare_file.h"
#include "traces/manifest.h"

namespace lockstep {
namespace {

// The words of Point::models that a place may need.
constexpr std::string_view kQkNorm = "with QK-norm", kExperts = "with experts",
                           kDense = "without experts";

class FromPoints {
 public:
  explicit FromPoints(const std::vector<Place>& shown) {
    for (const Place& place : shown) {
      layers_ = std::max(layers_, place.layer + 1);
      if (place.point->models == kQkNorm) qk_norm_ = true;
      if (place.point->models == kExperts) experts_.insert(place.layer);
      if (place.point->op == OpKind::angles) tables_ = true;
    }
  }

  Graph make() {
    check(layers_ <= kMostLayers, "a model of at most {} layers was wanted, found {}", kMostLayers,
          layers_);
    bool before = true;  // of the layers
    for (const Point& p : kPoints) {
      if (p.per_layer && before) add_layers();
      before = before && !p.per_layer;
      if (!p.per_layer && has(p, -1)) add(p, -1);
    }
    return std::move(graph_);
  }

 private:
  void add_layers() {
    for (int layer = 0; layer < layers_; ++layer)
      for (const Point& p : kPoints)
        if (p.per_layer && has(p, layer)) add(p, layer);
  }

  bool has(const Point& p, int layer) const {
    if (p.op == OpKind::angles) return tables_;
    if (p.models == kQkNorm) return qk_norm_;
    if (p.models == kExperts) return experts_.contains(layer);
    return p.models != kDense || !experts_.contains(layer);
  }

  void add(const Point& p, int layer) {
    std::vector<int> inputs;
    for (std::string_view rest = p.reads; !rest.empty();) {
      const size_t comma = std::min(rest.find(", "), rest.size());
      if (const int input = input_of(rest.substr(0, comma), layer); input >= 0)
        inputs.push_back(input);
      rest.remove_prefix(std::min(comma + 2, rest.size()));
    }
    const int node = graph_.add({&p, layer}, std::move(inputs));
    if (p == point("embed") || p == point("mlp.residual")) stream_ = node;
  }

  // The node that a name of Point::reads means in this model; -1: it has none.
  int input_of(std::string_view name, int layer) const {
    if (name == "stream") return stream_;
    if (name == "attn.q_norm" && !qk_norm_) name = "attn.q";
    if (name == "attn.k_norm" && !qk_norm_) name = "attn.k";
    if (name == "mlp.combine" && !experts_.contains(layer)) name = "mlp.down";
    const Point* p = find_point(name);
    return p ? graph_.index_of({p, p->per_layer ? layer : -1}) : -1;
  }

  Graph graph_;
  int layers_ = 0;
  bool qk_norm_ = false, tables_ = false;
  std::set<int> experts_;  // layers
  int stream_ = -1;        // the node of the residual stream so far
};

}  // namespace

Graph graph_of_points(const std::vector<Place>& shown) { return FromPoints(shown).make(); }

}  // namespace lockstep
