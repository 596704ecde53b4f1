#include "probes/graph.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/base/check.h"
#include "probes/qwen_graph.h"

namespace lockstep {
namespace {

const Graph kQwen3 = qwen_graph({.layers = 2, .qk_norm = true});
const Graph kQwen2 = qwen_graph({.layers = 2, .qk_norm = false});
const Graph kMixed = qwen_graph({.layers = 3, .qk_norm = true, .expert_layers = {1}});

std::string text_of(const std::vector<Place>& places) {
  std::string text;
  for (const Place& place : places) {
    text += fmt::format("{}{}", text.empty() ? "" : " ", place.point->name);
    if (place.layer >= 0) text += fmt::format("@{}", place.layer);
  }
  return text;
}

std::string inputs(const Graph& graph, const Point& point, int layer) {
  return text_of(graph.inputs_of({&point, layer}));
}

TEST(Graph, PlacesAreInTheOrderInWhichTheModelComputes) {
  EXPECT_EQ(text_of(qwen_graph({.layers = 1, .qk_norm = true}).places()),
            "embed attn.norm@0 attn.q@0 attn.k@0 attn.v@0 attn.q_norm@0 attn.k_norm@0 "
            "attn.q_rope@0 attn.k_rope@0 attn.kv@0 attn.out@0 attn.o@0 attn.residual@0 mlp.norm@0 "
            "mlp.gate@0 mlp.up@0 mlp.act@0 mlp.down@0 mlp.residual@0 final.norm logits token");
  EXPECT_EQ(kQwen3.places().size(), 4u + 2 * 18);
  EXPECT_EQ(kQwen2.places().size(), 4u + 2 * 16);
  EXPECT_EQ(text_of(kQwen2.places()).find("q_norm"), std::string::npos);
  EXPECT_EQ(text_of(qwen_graph({}).places()), "embed final.norm logits token");
}

TEST(Graph, InputsComeBeforeTheirPlaceAndExist) {
  for (const Graph& graph : {kQwen3, kQwen2, kMixed}) {
    std::set<std::string> seen;
    for (const Place& place : graph.places()) {
      for (const Place& input : graph.inputs_of(place))
        EXPECT_TRUE(seen.contains(text_of({input}))) << text_of({place});
      seen.insert(text_of({place}));
    }
  }
}

TEST(Graph, RopeReadsTheNormWhereThereIsOne) {
  EXPECT_EQ(inputs(kQwen3, point("attn.q_rope"), 1), "attn.q_norm@1");
  EXPECT_EQ(inputs(kQwen2, point("attn.q_rope"), 1), "attn.q@1");
  EXPECT_EQ(inputs(kQwen2, point("attn.k_rope"), 0), "attn.k@0");
}

TEST(Graph, TheStreamComesFromTheLayerBefore) {
  EXPECT_EQ(inputs(kQwen3, point("embed"), -1), "");
  EXPECT_EQ(inputs(kQwen3, point("attn.norm"), 0), "embed");
  EXPECT_EQ(inputs(kQwen3, point("attn.norm"), 1), "mlp.residual@0");
  EXPECT_EQ(inputs(kQwen3, point("attn.residual"), 1), "mlp.residual@0 attn.o@1");
  EXPECT_EQ(inputs(kQwen3, point("final.norm"), -1), "mlp.residual@1");
  EXPECT_EQ(inputs(kQwen3, point("token"), -1), "logits");
}

TEST(Graph, JudgingSomePlacesTakesWhatTheyRead) {
  const auto needed = [](const char* points, const char* layers) {
    return text_of(kQwen3.places_to_judge(Selection(points, layers, "", "")));
  };
  EXPECT_EQ(needed("", ""), text_of(kQwen3.places()));
  EXPECT_EQ(needed("mlp.act", "1"), "mlp.gate@1 mlp.up@1 mlp.act@1 logits token");
  EXPECT_EQ(needed("attn.norm", "1"), "mlp.residual@0 attn.norm@1 logits token");
  // What attention reads was written there by this pass and those before.
  EXPECT_EQ(needed("attn.out", "0"),
            "attn.v@0 attn.q_rope@0 attn.k_rope@0 attn.kv@0 attn.out@0 logits token");
  EXPECT_EQ(needed("token", ""), "logits token");
}

TEST(Graph, ALayerHasOneMlpOrExperts) {
  const std::string places = text_of(kMixed.places());
  EXPECT_NE(places.find("mlp.norm@1 mlp.router@1 mlp.experts@1 mlp.weights@1 mlp.expert_gate@1 "
                        "mlp.expert_up@1 mlp.expert_act@1 mlp.expert_down@1 mlp.combine@1 "
                        "mlp.residual@1"),
            std::string::npos);
  EXPECT_NE(places.find("mlp.norm@2 mlp.gate@2 mlp.up@2 mlp.act@2 mlp.down@2 mlp.residual@2"),
            std::string::npos);
  EXPECT_EQ(places.find("mlp.router@0"), std::string::npos);
  EXPECT_EQ(inputs(kMixed, point("mlp.residual"), 0), "attn.residual@0 mlp.down@0");
  EXPECT_EQ(inputs(kMixed, point("mlp.residual"), 1), "attn.residual@1 mlp.combine@1");
  EXPECT_EQ(inputs(kMixed, point("mlp.expert_up"), 1), "mlp.norm@1 mlp.experts@1");
  EXPECT_EQ(inputs(kMixed, point("mlp.combine"), 1),
            "mlp.expert_down@1 mlp.weights@1 mlp.experts@1");
}

TEST(Graph, IsToldToPeople) {
  EXPECT_EQ(text_of(kQwen2), "2 layers");
  EXPECT_EQ(text_of(kMixed), "3 layers with QK-norm, 1 of them with experts");
}

TEST(Graph, ANodeIsAddedOnceAndReadsWhatIsBeforeIt) {
  Graph graph;
  const int embed = graph.add({&point("embed")}, {});
  const int norm = graph.add({&point("attn.norm"), 0}, {embed});
  EXPECT_THROW(graph.add({&point("attn.norm"), 0}, {embed}), Error) << "it is there";
  EXPECT_THROW(graph.add({&point("attn.q"), 0}, {norm + 1}), Error) << "it reads itself";
  EXPECT_THROW(graph.add({&point("attn.q"), 0}, {-1}), Error);
  EXPECT_THROW(graph.add({&point("attn.q"), -1}, {norm}), Error) << "a layer's point is of one";
  EXPECT_THROW(graph.add({&point("logits"), 0}, {norm}), Error) << "the model's is of none";
  EXPECT_EQ(text_of(graph.places()), "embed attn.norm@0") << "what was refused is not there";
  EXPECT_EQ(graph.layers(), 1);
}

TEST(Graph, FindsItsNodesByPlace) {
  for (const Graph& graph : {kQwen3, kMixed}) {
    for (size_t i = 0; i < graph.places().size(); ++i)
      EXPECT_EQ(graph.index_of(graph.places()[i]), static_cast<int>(i));
    EXPECT_FALSE(graph.has({&point("attn.q"), graph.layers()}));
    EXPECT_FALSE(graph.has({&point("attn.q"), -1}));
    EXPECT_FALSE(graph.has({&point("rope.cos")}));
  }
  EXPECT_FALSE(Graph().has({&point("embed")}));
  // As a shared library has it.
  const Point twin = point("attn.q");
  EXPECT_EQ(kQwen3.index_of({&twin, 1}), kQwen3.index_of({&point("attn.q"), 1}));
}

TEST(Graph, WithoutSomeNodesNobodyReadsThem) {
  const Graph with = qwen_graph({.layers = 2, .qk_norm = true, .rope_tables = true});
  EXPECT_EQ(inputs(with, point("attn.k_rope"), 1), "attn.k_norm@1 rope.cos rope.sin");
  const Graph without = with.restricted([](const Place& at) { return !at.point->optional; });
  EXPECT_EQ(without, kQwen3);
  EXPECT_NE(with, kQwen3);
}

TEST(Graph, SharesAreOfExecutorsThatAttendInThem) {
  const Graph in_shares = qwen_graph({.layers = 2, .qk_norm = true, .shares = true});
  EXPECT_EQ(inputs(in_shares, point("attn.lse"), 1), "attn.q_rope@1 attn.kv@1");
  EXPECT_EQ(inputs(in_shares, point("attn.out"), 1),
            "attn.q_rope@1 attn.kv@1 attn.partial@1 attn.lse@1");
  EXPECT_EQ(inputs(kQwen3, point("attn.out"), 1), "attn.q_rope@1 attn.kv@1");
  EXPECT_EQ(in_shares.restricted([](const Place& at) { return !at.point->is_of_shares(); }),
            kQwen3);
  EXPECT_EQ(qwen_graph(QwenShape::showing(in_shares.places())), in_shares);
}

TEST(Graph, NamesFromFilesAreFoundOrNot) {
  EXPECT_EQ(find_point("attn.kv"), &kPoints[12]);
  EXPECT_EQ(find_point("attn.qk"), nullptr);
  EXPECT_EQ(point("token").order(), static_cast<int>(kPoints.size()) - 1);
}

}  // namespace
}  // namespace lockstep
