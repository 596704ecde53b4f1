// Shapes of the ops whose rows know nothing of each other. Widths around those of vectors and
// tiles: multiples of 32, one more, odd ones, and ones that real models have; rows from one to a
// few tiles. Of each op a few cases have numbers that overflow fp16, are nearly subnormal, or are
// 0, and of some NaN.
#include <fmt/format.h>

#include "kernels/fused.h"
#include "src/opcheck/grids.h"

namespace lockstep {
namespace {

using Values = GridCase::Values;
using Stretch = GridCase::Stretch;

// A pass of so many rows: of one request, or of several with other positions.
std::vector<std::vector<Stretch>> passes_of_rows(int32_t count) {
  if (count < 4) return {{{0, count}}};
  return {{{0, count / 2}, {40, 1}, {7, count - count / 2 - 1}}};
}

constexpr Values kOddValues[] = {Values::large, Values::tiny, Values::zeros};
constexpr Values kOddOrNan[] = {Values::large, Values::tiny, Values::zeros, Values::nan};

GridCase of_rows(std::string_view point, int32_t count, std::vector<Trait> traits) {
  GridCase made{.point = point, .passes = passes_of_rows(count)};
  made.traits = std::move(traits);
  made.traits.push_back({"rows", count});
  return made;
}

// A row of the hidden size, whatever the op computes of it.
GridCase hidden_sum(std::string_view point, int64_t width, int32_t count) {
  GridCase made = of_rows(point, count, {{"width", width}});
  made.model.hidden = width;
  return made;
}

GridCase hidden_norm(std::string_view point, int64_t width, int32_t count) {
  GridCase made = hidden_sum(point, width, count);
  made.traits.push_back({"eps", fmt::format("{}", made.model.eps)});
  return made;
}

GridCase with_eps(GridCase made, double eps) {
  made.model.eps = eps;
  for (Trait& trait : made.traits)
    if (trait.name == "eps") trait.value = fmt::format("{}", eps);
  return made;
}

GridCase product(int64_t inputs, int64_t outputs, int32_t count) {
  GridCase made = of_rows("mlp.down", count, {{"inputs", inputs}, {"outputs", outputs}});
  made.model.intermediate = inputs;
  made.model.hidden = outputs;
  return made;
}

GridCase product_with_bias(int64_t inputs, int64_t heads, int64_t head_dim, int32_t count) {
  GridCase made = of_rows("attn.q", count, {{"inputs", inputs}, {"outputs", heads * head_dim}});
  made.traits.push_back({"bias", "added"});
  made.model.family = "qwen2";
  made.model.hidden = inputs;
  made.model.heads = heads;
  made.model.head_dim = head_dim;
  return made;
}

GridCase of_experts(std::string_view point, int64_t experts, int64_t chosen, int32_t count) {
  GridCase made = of_rows(point, count, {{"experts", experts}, {"chosen", chosen}});
  made.model.family = "qwen3_moe";
  made.model.experts = experts;
  made.model.chosen = chosen;
  return made;
}

std::vector<GridCase> gather_grid() {
  std::vector<GridCase> all;
  const auto add = [&](int64_t vocab, int64_t width, int32_t count) {
    GridCase made = of_rows("embed", count, {{"table rows", vocab}, {"width", width}});
    made.model.vocab = vocab;
    made.model.hidden = width;
    all.push_back(std::move(made));
  };
  for (const int64_t width : {8, 33, 64, 100, 896, 1025}) add(97, width, 1), add(97, width, 21);
  add(70001, 8, 13);
  add(33000, 33, 9);
  add(500, 1024, 256);
  all.back().timed = true;
  return all;
}

// A norm over a head is tried with the sizes that heads have, one over the hidden size with those
// of a stream; eps matters where rows are tiny.
std::vector<GridCase> norm_grid() {
  std::vector<GridCase> all;
  for (const int64_t width : {8, 33, 64, 80, 96, 100, 128, 257, 896, 1025, 4096, 5120})
    for (const int32_t count : {1, 5, 19}) all.push_back(hidden_norm("attn.norm", width, count));
  for (const int64_t head_dim : {64, 80, 96, 128, 256})
    for (const int64_t heads : {1, 3, 14}) {
      GridCase made = of_rows("attn.q_norm", 5, {{"width", head_dim}});
      made.traits.push_back({"heads", heads});
      made.traits.push_back({"eps", fmt::format("{}", made.model.eps)});
      made.model.heads = heads;
      made.model.head_dim = head_dim;
      all.push_back(std::move(made));
    }
  for (const Values values : kOddOrNan)
    for (const int64_t width : {64, 100, 1025}) {
      all.push_back(hidden_norm("mlp.norm", width, 7));
      all.back().values = values;
    }
  for (const int64_t width : {64, 100}) {
    all.push_back(hidden_norm("mlp.norm", width, 7));
    all.back().values = Values::huge;
  }
  for (const double eps : {1e-12, 1e-5, 1e-2}) {
    all.push_back(with_eps(hidden_norm("attn.norm", 128, 7), eps));
    all.push_back(with_eps(hidden_norm("attn.norm", 96, 4), eps));
    all.back().values = Values::tiny;
  }
  all.push_back(hidden_norm("attn.norm", 1024, 256));
  all.back().timed = true;
  return all;
}

// Inputs and outputs are off the multiples of a tile in turn, so that a kernel that forgets the
// rest of either is told from one that forgets both.
std::vector<GridCase> matmul_grid() {
  std::vector<GridCase> all;
  struct Sizes {
    int64_t inputs, outputs;
    int32_t count;
  };
  for (const auto& [inputs, outputs, count] : std::to_array<Sizes>({{8, 8, 1},
                                                                    {33, 8, 2},
                                                                    {8, 33, 3},
                                                                    {64, 96, 1},
                                                                    {64, 96, 17},
                                                                    {100, 100, 5},
                                                                    {257, 64, 33},
                                                                    {896, 128, 1},
                                                                    {896, 128, 9},
                                                                    {1025, 31, 2},
                                                                    {128, 1000, 4},
                                                                    {4864, 96, 3},
                                                                    {80, 257, 65}}))
    all.push_back(product(inputs, outputs, count));
  all.push_back(product_with_bias(64, 2, 64, 1));
  all.push_back(product_with_bias(33, 1, 50, 7));
  all.push_back(product_with_bias(896, 2, 80, 18));
  for (const Values values : kOddOrNan)
    for (const int64_t inputs : {96, 100}) {
      all.push_back(product(inputs, 65, 6));
      all.back().values = values;
    }
  GridCase head = of_rows("logits", 3, {{"inputs", "64"}, {"outputs", "20011"}});
  head.model.hidden = 64;
  head.model.vocab = 20011;
  head.thin = true;
  all.push_back(std::move(head));
  all.push_back(product(1024, 1024, 1));
  all.back().timed = true;
  all.push_back(product(1024, 512, 64));
  all.back().timed = true;
  all.back().thin = true;
  return all;
}

std::vector<GridCase> silu_grid() {
  std::vector<GridCase> all;
  const auto add = [&](int64_t width, int32_t count, Values values) {
    all.push_back(of_rows("mlp.act", count, {{"width", width}}));
    all.back().model.intermediate = width;
    all.back().values = values;
  };
  for (const int64_t width : {8, 33, 64, 100, 1025, 4864})
    for (const int32_t count : {1, 6}) add(width, count, Values::usual);
  for (const Values values :
       {Values::large, Values::tiny, Values::small, Values::zeros, Values::nan})
    add(64, 5, values), add(101, 5, values);
  for (const int64_t width : {33, 64}) {
    all.push_back(of_experts("mlp.expert_act", 4, 2, 5));
    all.back().model.intermediate = width;
    all.back().traits.push_back({"width", width});
  }
  add(3072, 128, Values::usual);
  all.back().timed = true;
  return all;
}

std::vector<GridCase> add_grid() {
  constexpr Values kOddSums[] = {Values::large, Values::tiny, Values::zeros, Values::huge,
                                 Values::nan};
  std::vector<GridCase> all;
  for (const int64_t width : {8, 33, 64, 100, 1025, 4096})
    for (const int32_t count : {1, 6}) all.push_back(hidden_sum("attn.residual", width, count));
  for (const Values values : kOddSums)
    for (const int64_t width : {64, 101}) {
      all.push_back(hidden_sum("mlp.residual", width, 5));
      all.back().values = values;
    }
  all.push_back(hidden_sum("attn.residual", 1024, 256));
  all.back().timed = true;
  return all;
}

// Vocabularies past 16 bits too, and equal largest values, of which the first is wanted. The
// largest is the last of some rows, NaN of others, and nearly the lowest of a few.
std::vector<GridCase> argmax_grid() {
  std::vector<GridCase> all;
  for (const int64_t vocab : {8, 33, 1000, 32003, 70001})
    for (const Values values : {Values::usual, Values::ties, Values::large}) {
      all.push_back(of_rows("token", vocab > 1000 ? 2 : 7, {{"width", vocab}}));
      all.back().model.vocab = vocab;
      all.back().values = values;
    }
  for (const int64_t vocab : {33, 1000})
    for (const Values values : {Values::nan, Values::low}) {
      all.push_back(of_rows("token", 7, {{"width", vocab}}));
      all.back().model.vocab = vocab;
      all.back().values = values;
    }
  all.push_back(of_rows("token", 4, {{"width", "151936"}}));
  all.back().model.vocab = 151936;
  all.back().thin = all.back().timed = true;
  return all;
}

std::vector<GridCase> top_k_grid() {
  std::vector<GridCase> all;
  for (const auto& [experts, chosen] : {std::pair{4, 1}, {8, 2}, {60, 4}, {128, 8}, {8, 8}})
    for (const Values values : {Values::usual, Values::ties, Values::large})
      for (const int32_t count : {1, 9}) {
        all.push_back(of_experts("mlp.experts", experts, chosen, count));
        all.back().values = values;
      }
  for (const Values values : {Values::nan, Values::low}) {
    all.push_back(of_experts("mlp.experts", 60, 4, 9));
    all.back().values = values;
  }
  all.push_back(of_experts("mlp.experts", 128, 8, 256));
  all.back().timed = true;
  return all;
}

std::vector<GridCase> softmax_grid() {
  std::vector<GridCase> all;
  for (const auto& [experts, chosen] : {std::pair{4, 1}, {8, 2}, {60, 4}, {128, 8}})
    for (const bool normalised : {false, true})
      for (const Values values : {Values::usual, Values::ties, Values::large, Values::tiny}) {
        all.push_back(of_experts("mlp.weights", experts, chosen, 7));
        all.back().model.normalised = normalised;
        all.back().traits.push_back({"normalised", normalised ? "yes" : "no"});
        all.back().values = values;
      }
  all.push_back(of_experts("mlp.weights", 128, 8, 256));
  all.back().timed = true;
  return all;
}

std::vector<GridCase> expert_grid() {
  std::vector<GridCase> all;
  const auto add = [&](const char* p, int64_t experts, int64_t hidden, int64_t inner, int32_t count,
                       Values values) {
    all.push_back(of_experts(p, experts, 2, count));
    const bool down = std::string_view(p) == "mlp.expert_down";
    all.back().model.hidden = hidden;
    all.back().model.intermediate = inner;
    all.back().traits.push_back({"inputs", down ? inner : hidden});
    all.back().traits.push_back({"outputs", down ? hidden : inner});
    all.back().values = values;
  };
  for (const char* p : {"mlp.expert_gate", "mlp.expert_down"}) {
    add(p, 4, 64, 32, 1, Values::usual);
    add(p, 4, 33, 50, 5, Values::usual);
    add(p, 8, 100, 64, 17, Values::usual);
    add(p, 60, 32, 24, 3, Values::usual);
    for (const Values values : kOddValues) add(p, 4, 64, 48, 6, values);
  }
  add("mlp.expert_gate", 8, 512, 256, 32, Values::usual);
  all.back().timed = true;
  return all;
}

std::vector<GridCase> weighted_sum_grid() {
  std::vector<GridCase> all;
  for (const int64_t chosen : {1, 2, 4, 8})
    for (const int64_t width : {8, 33, 64, 100, 1025}) {
      all.push_back(of_experts("mlp.combine", 8, chosen, 5));
      all.back().model.hidden = width;
      all.back().traits.push_back({"width", width});
      if (width == 64) all.back().values = kOddValues[chosen % 3];
    }
  all.push_back(of_experts("mlp.combine", 8, 4, 128));
  all.back().model.hidden = 1024;
  all.back().timed = true;
  return all;
}

std::vector<GridCase> add_norm_grid() {
  std::vector<GridCase> all;
  const char* point = "attn.residual";
  for (const int64_t width : {8, 33, 64, 100, 896, 1025, 4096})
    for (const int32_t count : {1, 7}) all.push_back(hidden_norm(point, width, count));
  for (const Values values : kOddValues) {
    all.push_back(hidden_norm(point, 100, 7));
    all.back().values = values;
  }
  for (const double eps : {1e-5, 1e-2})
    for (const int64_t width : {64, 100})
      all.push_back(with_eps(hidden_norm(point, width, 7), eps));
  all.push_back(hidden_norm(point, 1024, 256));
  all.back().timed = true;
  return all;
}

std::vector<GridCase> qkv_grid() {
  std::vector<GridCase> all;
  struct Sizes {
    int64_t inputs, heads, kv_heads, head_dim;
    int32_t count;
  };
  for (const auto& [inputs, heads, kv_heads, head_dim, count] :
       std::to_array<Sizes>({{64, 1, 1, 64, 1},
                             {33, 3, 1, 80, 5},
                             {100, 4, 2, 96, 3},
                             {896, 14, 2, 64, 2},
                             {128, 6, 2, 128, 17}}))
    for (const char* family : {"qwen3", "qwen2"}) {
      GridCase made = of_rows("attn.q", count, {{"inputs", inputs}});
      made.traits.push_back({"head_dim", head_dim});
      made.traits.push_back({"queries per KV head", heads / kv_heads});
      made.traits.push_back({"bias", std::string(family) == "qwen2" ? "added" : "none"});
      made.model.family = family;
      made.model.hidden = inputs;
      made.model.heads = heads;
      made.model.kv_heads = kv_heads;
      made.model.head_dim = head_dim;
      all.push_back(std::move(made));
    }
  for (const Values values : kOddValues) {
    all.push_back(all.front());
    all.back().values = values;
  }
  all.push_back(all[6]);
  all.back().timed = true;
  return all;
}

std::vector<GridCase> gate_up_grid() {
  std::vector<GridCase> all;
  const auto add = [&](int64_t inputs, int64_t outputs, int32_t count, Values values) {
    all.push_back(of_rows("mlp.act", count, {{"inputs", inputs}, {"outputs", outputs}}));
    all.back().model.hidden = inputs;
    all.back().model.intermediate = outputs;
    all.back().values = values;
  };
  for (const auto& [inputs, outputs] :
       {std::pair{8, 8}, {33, 64}, {64, 33}, {100, 100}, {896, 96}, {128, 1000}})
    for (const int32_t count : {1, 6}) add(inputs, outputs, count, Values::usual);
  // Numbers that overflow inside of it, or vanish, nobody can judge from outside.
  add(96, 65, 5, Values::zeros);
  add(1024, 1024, 4, Values::usual);
  all.back().timed = true;
  return all;
}

constexpr OpGrid kRowGrids[] = {{"gather_rows", gather_grid},
                                {"rms_norm", norm_grid},
                                {"matmul", matmul_grid},
                                {"silu_mul", silu_grid},
                                {"add", add_grid},
                                {"argmax", argmax_grid},
                                {"top_k", top_k_grid},
                                {"softmax_of", softmax_grid},
                                {"expert_matmul", expert_grid},
                                {"weighted_sum", weighted_sum_grid},
                                {kAddRmsNorm.name, add_norm_grid},
                                {kQkvMatmul.name, qkv_grid},
                                {kGateUpSilu.name, gate_up_grid}};

}  // namespace

std::span<const OpGrid> row_grids() { return kRowGrids; }

}  // namespace lockstep
