// The graph of a Qwen model, made of the rows of points.h: a node for each point that the model
// has, and an edge for each name in Point::reads. No list of a model's places stands anywhere else.
#include "probes/qwen_graph.h"

#include <algorithm>
#include <string_view>

namespace lockstep {
namespace {

// The words of Point::models that a layer may need.
constexpr std::string_view kQkNorm = "with QK-norm", kExperts = "with experts",
                           kDense = "without experts", kRanks = "over ranks", kShares = "in shares";
constexpr std::string_view kStream = "stream";  // the residual stream, in Point::reads

// Cuts the words before the next `mark` off the front of `rest`.
constexpr std::string_view take(std::string_view& rest, std::string_view mark) {
  const std::string_view word = rest.substr(0, rest.find(mark));
  rest.remove_prefix(std::min(word.size() + mark.size(), rest.size()));
  return word;
}

// Whether a point that some models have is of those that this word tells.
constexpr bool has_trait(const Point& p, std::string_view word) {
  for (std::string_view words = p.models; !words.empty();)
    if (take(words, ", ") == word) return true;
  return false;
}

// A row that reads a point that is none, or that is of models unknown here, does not compile.
static_assert([] {
  for (const Point& p : kPoints) {
    for (std::string_view words = p.models; !words.empty();)
      if (const std::string_view word = take(words, ", "); word != kQkNorm && word != kExperts &&
                                                           word != kDense && word != kRanks &&
                                                           word != kShares)
        return false;
    for (std::string_view inputs = p.reads; !inputs.empty();)
      for (std::string_view either = take(inputs, ", "); !either.empty();)
        if (const std::string_view name = take(either, " or ");
            name != kStream && std::ranges::find(kPoints, name, &Point::name) == kPoints.end())
          return false;
  }
  return true;
}());

// Points of no layer stand before or after the layers, as they do in the table.
class Maker {
 public:
  explicit Maker(const QwenShape& shape) : shape_(shape) {}

  Graph make() {
    bool before = true;  // of the layers
    for (const Point& p : kPoints) {
      if (p.per_layer && before)
        for (int layer = 0; layer < shape_.layers; ++layer) add_layer(layer);
      before = before && !p.per_layer;
      if (!p.per_layer && has(p, -1)) add(p, -1);
    }
    return std::move(graph_);
  }

 private:
  void add_layer(int layer) {
    for (const Point& p : kPoints)
      if (p.per_layer && has(p, layer)) add(p, layer);
  }

  bool has(const Point& p, int layer) const {
    if (p.op == OpKind::angles) return shape_.rope_tables;
    if (has_trait(p, kShares)) return shape_.shares;
    const bool experts = shape_.expert_layers.contains(layer);
    return (shape_.qk_norm || !has_trait(p, kQkNorm)) && (shape_.ranks || !has_trait(p, kRanks)) &&
           (experts ? !has_trait(p, kDense) : !has_trait(p, kExperts));
  }

  void add(const Point& p, int layer) {
    std::vector<int> inputs;
    for (std::string_view rest = p.reads; !rest.empty();)
      if (const int input = first_of(take(rest, ", "), layer); input >= 0) inputs.push_back(input);
    const int node = graph_.add({&p, layer}, std::move(inputs));
    if (p == point("embed") || p == point("mlp.residual")) stream_ = node;
  }

  // The node of the first of those points ("attn.q_norm or attn.q") that the model has; -1: none.
  int first_of(std::string_view either, int layer) const {
    while (!either.empty()) {
      const std::string_view name = take(either, " or ");
      if (name == kStream) return stream_;
      const Point* p = find_point(name);
      if (const int node = graph_.index_of({p, p->per_layer ? layer : -1}); node >= 0) return node;
    }
    return -1;
  }

  const QwenShape& shape_;
  Graph graph_;
  int stream_ = -1;  // the node of the residual stream so far
};

}  // namespace

QwenShape QwenShape::showing(const std::vector<Place>& places) {
  QwenShape shape;
  for (const Place& place : places) {
    shape.layers = std::max(shape.layers, place.layer + 1);
    if (has_trait(*place.point, kQkNorm)) shape.qk_norm = true;
    if (has_trait(*place.point, kExperts)) shape.expert_layers.insert(place.layer);
    if (has_trait(*place.point, kRanks)) shape.ranks = true;
    if (has_trait(*place.point, kShares)) shape.shares = true;
    if (place.point->op == OpKind::angles) shape.rope_tables = true;
  }
  return shape;
}

Graph qwen_graph(const QwenShape& shape) { return Maker(shape).make(); }

}  // namespace lockstep
