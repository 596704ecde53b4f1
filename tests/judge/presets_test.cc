// The table of engines' rounding contracts, and the texts that set single points.
#include "src/judge/presets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "src/judge/contracts.h"
#include "src/weights/qwen_graph.h"
#include "tests/helpers.h"
#include "tests/places.h"
#include "traces/manifest.h"

namespace lockstep {
namespace {

using enum RoundingContract;

constexpr ContractTraits kBf16 = {.dtype = DType::bf16}, kFp32 = {.dtype = DType::f32};

bool has(OpKind op, const ContractTraits& traits, RoundingContract contract) {
  const std::vector<RoundingContract> all = contracts_of(op, traits);
  return std::ranges::count(all, contract) > 0;
}

TEST(Presets, HaveNamesOfTheirOwnAndSaySo) {
  std::set<std::string_view> names;
  for (const Preset& preset : presets()) {
    EXPECT_TRUE(names.insert(preset.name).second) << preset.name;
    EXPECT_FALSE(preset.says.empty()) << preset.name;
  }
  for (const char* name :
       {"fused", "hf", "hf-eager", "eager", "vllm", "sglang", "trt-llm", "llama.cpp"})
    EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_FALSE(names.contains("auto")) << "which is no engine, but what is tried";
}

TEST(Presets, HaveLinesWithASourceAndAContractThatTheOpHas) {
  for (const Preset& preset : presets())
    for (const Preset::Line& line : preset.lines) {
      EXPECT_GT(line.source.size(), 10u) << preset.name << ' ' << name_of(line.op);
      EXPECT_TRUE(has(line.op, kBf16, line.contract) || has(line.op, kFp32, line.contract))
          << preset.name << ' ' << name_of(line.op);
    }
}

TEST(Presets, SayEveryPoint) {
  for (const Preset& preset : presets())
    EXPECT_EQ(contracts_of_preset(preset.name).size(), kPoints.size()) << preset.name;
}

// The contract of that name, at every point, as far as its op has it: what --schema meant before.
TEST(Presets, OfHuggingFaceAreItsContractAtEveryPoint) {
  for (const auto& [name, contract] :
       std::map<std::string, RoundingContract>{{"fused", fused}, {"hf", hf}, {"eager", eager}}) {
    const auto all = contracts_of_preset(name);
    for (const Point& p : kPoints)
      EXPECT_EQ(all.at(std::string(p.name)), meant_by(contract, p.op, kBf16)) << name << p.name;
  }
  EXPECT_EQ(contracts_of_preset("hf-eager"), contracts_of_preset("eager"));
}

TEST(Presets, DifferWhereTheEnginesDo) {
  const auto vllm = contracts_of_preset("vllm"), sglang = contracts_of_preset("sglang");
  EXPECT_EQ(vllm.at("attn.norm"), fused) << "of the rounded sum";
  const auto vllm_19 = contracts_of_preset("vllm-0.19");
  EXPECT_EQ(vllm_19.at("attn.norm"), hf);
  for (const auto& [name, contract] : vllm)
    EXPECT_TRUE(vllm_19.at(name) == contract || find_point(name)->op == OpKind::norm) << name;
  EXPECT_EQ(vllm.at("attn.k_rope"), tables_rounded);
  EXPECT_EQ(vllm.at("mlp.act"), hf);
  EXPECT_EQ(sglang.at("mlp.norm"), unrounded_sum);
  EXPECT_EQ(sglang.at("attn.q_norm"), fused) << "which reads no sum";
  EXPECT_EQ(sglang.at("attn.q_rope"), fused);
  EXPECT_EQ(sglang.at("attn.out"), hf);
  const auto llama = contracts_of_preset("llama.cpp");
  EXPECT_EQ(llama.at("logits"), operands_bf16);
  EXPECT_EQ(llama.at("attn.norm"), fused);
  EXPECT_EQ(contracts_of_preset("llama.cpp-f16").at("mlp.down"), operands_fp16);
  const auto of_fp32 = contracts_of_preset("llama.cpp-f32");
  EXPECT_EQ(of_fp32.at("mlp.down"), fused);
  EXPECT_EQ(of_fp32.at("attn.out"), flash_fp16);
  EXPECT_EQ(of_fp32.at("attn.q_rope"), angles_iterated);
}

TEST(Presets, AreNamedWhereNoneIsMeant) {
  expect_trouble("'vlm' is no set of rounding contracts; did you mean \"vllm\"?",
                 [] { contracts_of_preset("vlm"); });
}

std::vector<std::string> points_of(const std::string& text) {
  std::vector<std::string> names;
  for (const Point* p : rounding_from(text).points) names.emplace_back(p->name);
  return names;
}

TEST(Rounding, IsOfAPointOrOfThoseOfAGlobWhoseOpHasIt) {
  EXPECT_EQ(rounding_from("attn.norm=hf").contract, hf);
  EXPECT_EQ(points_of("attn.norm=hf"), std::vector<std::string>{"attn.norm"});
  EXPECT_EQ(points_of("*=tables_rounded"),
            (std::vector<std::string>{"attn.q_rope", "attn.k_rope"}));
  EXPECT_EQ(points_of("attn.?_norm,mlp.norm=unrounded_sum"),
            (std::vector<std::string>{"attn.q_norm", "attn.k_norm", "mlp.norm"}));
}

TEST(Rounding, RefusesWhatItDoesNotKnow) {
  for (const char* text : {"attn.norm", "=hf", "attn.norm=", ""})
    expect_trouble("--rounding wants POINT=CONTRACT, as attn.norm=hf",
                   [&] { rounding_from(text); });
  expect_trouble("no point matches 'attn.nrm'; did you mean \"attn.norm\"?",
                 [] { rounding_from("attn.nrm=hf"); });
  expect_trouble("'unrounded_sums' is no rounding contract; did you mean \"unrounded_sum\"?",
                 [] { rounding_from("attn.norm=unrounded_sums"); });
  expect_trouble(
      "--rounding attn.norm=tables_rounded: no op there rounds so; attn.norm can be fused, "
      "hf, unrounded_sum, hf_unrounded_sum",
      [] { rounding_from("attn.norm=tables_rounded"); });
}

TEST(Presets, AreThoseOfThePythonPackage) {
  std::ifstream file(source_path("traces/python/lockstep/roundings.json"));
  const auto engines = nlohmann::json::parse(file);
  EXPECT_EQ(engines.size(), presets().size());
  for (const Preset& preset : presets()) {
    ASSERT_TRUE(engines.contains(preset.name)) << preset.name;
    std::map<std::string, std::string> several;  // the points that do not round once
    for (const auto& [point, contract] : contracts_of_preset(preset.name))
      if (contract != fused) several.emplace(point, name_of(contract));
    EXPECT_EQ((engines[std::string(preset.name)].get<std::map<std::string, std::string>>()),
              several)
        << preset.name;
  }
}

TEST(Rounding, RefusesWhatNoOpOfTheRunHas) {
  const Graph graph = qwen_graph({2, true});
  const auto in = [](DType dtype) {
    return [dtype](const Place& place) { return contracts_of(place.point->op, {dtype, false}); };
  };
  check_can_round(rounding_from("attn.q=tf32"), graph, in(DType::f32));
  expect_trouble("--rounding attn.q=tf32: no op of this run rounds so; attn.q can be fused",
                 [&] { check_can_round(rounding_from("attn.q=tf32"), graph, in(DType::bf16)); });
  expect_trouble("no op of this run rounds so", [&] {
    check_can_round(rounding_from("attn.q=bias_after_store"), graph, in(DType::bf16));
  });
  expect_trouble("the model has no such point",
                 [&] { check_can_round(rounding_from("mlp.combine=hf"), graph, in(DType::bf16)); });
  expect_trouble("--rounding attn.lse=hf: no pass shows such a tensor",
                 [&] { check_can_round(rounding_from("attn.lse=hf"), graph, in(DType::bf16)); });
}

// As the graph of an oracle is, which stands in another library.
TEST(Rounding, IsOfPointsOfAnotherTable) {
  const Point others = point("attn.out");
  Graph graph;
  graph.add({&others, 0}, {});
  const PointRounding asked = rounding_from("attn.out=hf");
  EXPECT_TRUE(asked.is_of(others));
  EXPECT_FALSE(asked.is_of(point("attn.o")));
  check_can_round(asked, graph, [](const Place& place) {
    return contracts_of(place.point->op, {DType::bf16, false});
  });
}

}  // namespace
}  // namespace lockstep
