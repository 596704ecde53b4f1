// Shapes of the ops that know positions and pages.
#include <fmt/format.h>

#include "kernels/fused.h"
#include "src/opcheck/grids.h"

namespace lockstep {
namespace {

using Values = GridCase::Values;
using Stretch = GridCase::Stretch;

constexpr int64_t kHeadDims[] = {64, 80, 96, 128, 256};
constexpr int64_t kGroups[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16};
constexpr int64_t kPages[] = {8, 16, 32};
constexpr int32_t kFar = 65530;       // rows from here on cross 65536
constexpr int32_t kFarther = 131069;  // and from here 2^17

GridCase attention(int64_t head_dim, int64_t kv_heads, int64_t group, int64_t page,
                   std::vector<Stretch> pass) {
  GridCase made{.point = "attn.out", .page_size = page};
  made.model.heads = kv_heads * group;
  made.model.kv_heads = kv_heads;
  made.model.head_dim = head_dim;
  int32_t longest = 0;
  for (const Stretch& s : pass) longest = std::max(longest, s.first + s.count);
  made.passes = {std::move(pass)};
  made.traits = {{"head_dim", head_dim},
                 {"queries per KV head", group},
                 {"KV heads", kv_heads},
                 {"pages of", page},
                 {"longest context", longest}};
  return made;
}

// Requests that decode, begin, and go on over a cache, with pages full and not.
std::vector<Stretch> mixed(int64_t i, int64_t page) {
  const auto p = static_cast<int32_t>(page), n = static_cast<int32_t>(i);
  switch (i % 4) {
    case 0:
      return {{0, 3 + n % 5}, {3 * p - 1, 1}, {2 * p + 3, 5}};
    case 1:
      return {{4 * p, 1}, {0, p + 1}, {p - 2, 4}};
    case 2:
      return {{17 + 7 * n, 1}, {p, 1}, {1, 1}};
    default:
      return {{0, p + 2}, {5 * p + 1, 3}};
  }
}

GridCase with_window(GridCase made, int64_t window) {
  made.model.window = window;
  made.traits.push_back({"window", window});
  return made;
}

GridCase with_values(GridCase made, Values values) {
  made.values = values;
  return made;
}

// Kernels fail where their tiles end: at head sizes that are no power of two, groups that do not
// fill a tile, pages that end inside one, windows that begin inside a page, contexts that are
// split, and positions past 16 bits. Each of these is in some case, and every head size meets every
// group.
std::vector<GridCase> attention_grid() {
  std::vector<GridCase> all;
  int64_t i = 0;
  for (const int64_t head_dim : kHeadDims)
    for (const int64_t group : kGroups) {
      const int64_t page = kPages[i % 3];
      all.push_back(attention(head_dim, 1 + (i + i / 10) % 2, group, page, mixed(i, page)));
      ++i;
    }
  for (const int64_t head_dim : {64, 128}) {
    all.push_back(with_window(attention(head_dim, 2, 2, 8, {{30, 1}, {0, 21}, {40, 9}}), 16));
    all.push_back(with_window(attention(head_dim, 1, 4, 16, {{100, 1}, {0, 40}}), 33));
    for (const Values values : {Values::large, Values::tiny, Values::zeros, Values::nan})
      all.push_back(with_values(attention(head_dim, 2, 3, 16, {{20, 1}, {0, 9}, {17, 4}}), values));
  }
  const auto thin = [&](GridCase made) {
    made.thin = true;
    all.push_back(std::move(made));
  };
  thin(attention(64, 2, 4, 16, {{999, 1}, {511, 1}, {1023, 1}}));
  thin(attention(80, 1, 4, 8, {{2047, 3}, {700, 1}}));
  thin(attention(128, 2, 2, 32, {{4095, 1}, {130, 1}}));
  thin(attention(96, 1, 3, 16, {{8190, 2}, {77, 3}, {0, 5}}));
  thin(attention(256, 1, 2, 8, {{3000, 1}}));
  thin(attention(64, 1, 1, 32, {{kFar + 10, 1}}));  // the oracle holds keys x dims a query
  GridCase decode = attention(128, 2, 4, 16, {{1500, 1}, {2000, 1}, {900, 1}, {1800, 1}});
  GridCase prefill = attention(64, 1, 4, 16, {{0, 128}});
  decode.timed = prefill.timed = true;
  thin(decode);
  thin(prefill);
  return all;
}

// Past 32767 and 65535 a position is cut by 16-bit integers; at large angles an angle in fp32 is
// off by many of its spacings.
std::vector<GridCase> rope_grid() {
  std::vector<GridCase> all;
  const auto add = [&](int64_t head_dim, int64_t heads, std::vector<Stretch> pass) -> GridCase& {
    GridCase& made = all.emplace_back(GridCase{.point = "attn.q_rope"});
    made.model.heads = heads;
    made.model.head_dim = head_dim;
    made.passes = {std::move(pass)};
    made.traits = {{"head_dim", head_dim}, {"heads", heads}};
    return made;
  };
  for (const int64_t head_dim : kHeadDims) {
    for (const int64_t heads : {1, 3, 14}) add(head_dim, heads, {{0, 5}, {100, 1}, {1000, 3}});
    for (const Values values : {Values::large, Values::tiny, Values::zeros, Values::nan})
      add(head_dim, 2, {{0, 7}, {30, 1}}).values = values;
    add(head_dim, 2, {{30, 1}});  // alone, as in a decode step
    add(head_dim, 2, {{32766, 4}}).thin = true;
    if (head_dim == 64)
      add(head_dim, 2, {{kFar, 9}, {10, 1}, {kFarther, 5}}).thin = true;
    else
      add(head_dim, 2, {{kFar, 9}, {10, 1}}).thin = true;
  }
  add(128, 16, {{0, 128}}).timed = true;
  return all;
}

// Later passes write beside what earlier ones left, which must stay as it is.
std::vector<GridCase> cache_grid() {
  std::vector<GridCase> all;
  const auto add = [&](int64_t head_dim, int64_t kv_heads, int64_t page,
                       std::vector<std::vector<Stretch>> passes) -> GridCase& {
    GridCase& made = all.emplace_back(GridCase{.point = "attn.kv", .page_size = page});
    made.model.heads = made.model.kv_heads = kv_heads;
    made.model.head_dim = head_dim;
    made.passes = std::move(passes);
    made.traits = {{"head_dim", head_dim}, {"KV heads", kv_heads}, {"pages of", page}};
    return made;
  };
  int64_t i = 0;
  for (const int64_t head_dim : kHeadDims)
    for (const int64_t page : kPages) {
      const auto p = static_cast<int32_t>(page);
      const int64_t kv_heads = 1 + i++ % 3;
      add(head_dim, kv_heads, page, {{{0, p + 3}, {0, 2}}, {{p + 3, 5}, {2, 1}}, {{2, 1}}});
      all.back().passes[2] = {{p + 8, 1}, {3, 1}};
      add(head_dim, kv_heads, page, {{{0, 3 * p}}, {{3 * p, 1}}});
    }
  add(64, 1, 32, {{{kFar, 9}}}).thin = true;
  add(128, 8, 16, {{{0, 64}}}).timed = true;
  return all;
}

// Both families are tried, since the fused op leaves the norm out where the model has none.
std::vector<GridCase> qk_norm_rope_grid() {
  std::vector<GridCase> all;
  int64_t i = 0;
  const auto add = [&](const char* family, int64_t head_dim, int64_t group,
                       std::vector<std::vector<Stretch>> passes) -> GridCase& {
    GridCase made = attention(head_dim, 1 + i % 2, group, kPages[i % 3], {});
    ++i;
    made.point = "attn.kv";
    made.model.family = family;
    made.passes = std::move(passes);
    made.traits.pop_back();
    made.traits.push_back({"QK-norm", std::string(family) == "qwen2" ? "none" : "both"});
    all.push_back(std::move(made));
    return all.back();
  };
  for (const int64_t head_dim : kHeadDims)
    for (const char* family : {"qwen3", "qwen2"}) {
      add(family, head_dim, 1 + i % 4, {{{0, 11}, {0, 3}}, {{11, 4}, {3, 1}}});
      add(family, head_dim, 1 + i % 7, {{{0, 33}}, {{33, 1}}});
    }
  for (const Values values : {Values::large, Values::tiny, Values::zeros})
    add("qwen3", 128, 2, {{{0, 9}, {0, 4}}}).values = values;
  for (const double eps : {1e-5, 1e-3}) {
    GridCase& made = add("qwen3", 64, 2, {{{0, 9}}});
    made.model.eps = eps;
    made.traits.push_back({"eps", fmt::format("{}", eps)});
  }
  add("qwen3", 64, 2, {{{kFar, 9}}}).thin = true;
  add("qwen3", 128, 2, {{{0, 128}}}).timed = true;
  return all;
}

constexpr OpGrid kAttentionGrids[] = {{"rope", rope_grid},
                                      {"kv_write", cache_grid},
                                      {"kv_gather", cache_grid},
                                      {"paged_attention", attention_grid},
                                      {kQkNormRopeKvWrite.name, qk_norm_rope_grid}};

}  // namespace

std::span<const OpGrid> attention_grids() { return kAttentionGrids; }

}  // namespace lockstep
