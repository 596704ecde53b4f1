// The shapes of an op, of which each op of lockstep_ops.h must have some (grids.h), and the facts
// about a case that are derived from its shape: powers of two, multiples of 32, being one or
// several. They are derived for common_to(), as kernels are wrong by such rules more often than at
// single sizes.
#include "src/opcheck/op_grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <span>

#include "kernels/base/check.h"
#include "kernels/fused.h"
#include "src/opcheck/grids.h"

namespace lockstep {
namespace {

Place place_of(std::string_view name) {
  const Point* p = find_point(name);
  check(p != nullptr, "the grid names a point {}, which there is not", name);
  return {p, p->per_layer ? 0 : -1};
}

std::vector<Place> places(std::initializer_list<std::string_view> names) {
  std::vector<Place> all;
  for (const std::string_view name : names) all.push_back(place_of(name));
  return all;
}

const char* name_of(GridCase::Values values) {
  static constexpr const char* kNames[] = {
      "usual",          "that overflow fp16", "near subnormal",
      "with rows of 0", "with ties",          "with huge results",
      "with NaN",       "far below 0",        "with small gates"};
  return kNames[static_cast<size_t>(values)];
}

int32_t last_position(const GridCase& shape) {
  int32_t last = 0;
  for (const auto& pass : shape.passes)
    for (const GridCase::Stretch& stretch : pass)
      last = std::max(last, stretch.first + stretch.count - 1);
  return last;
}

const char* kind_of(const GridCase& shape) {
  bool decodes = false, chunks = false, whole = false;
  for (const auto& pass : shape.passes)
    for (const GridCase::Stretch& s : pass)
      (s.first == 0 ? whole : s.count == 1 ? decodes : chunks) = true;
  if (decodes + chunks + whole > 1) return "mixed";
  return decodes ? "decode" : chunks ? "chunks over a cache" : "prefill";
}

// Numbers that the op's inputs have in that case; what a case's size is. It orders cases, and is no
// count to rely on: weights count once, rows and contexts as often as they are read.
int64_t numbers_in(const GridCase& shape) {
  const SmallModel& m = shape.model;
  int64_t rows = 0, context = 0;
  for (const auto& pass : shape.passes)
    for (const GridCase::Stretch& s : pass) rows += s.count, context += s.first + s.count;
  const int64_t width = m.hidden + m.intermediate + m.heads * m.head_dim + m.vocab;
  return rows * width + context * m.kv_heads * m.head_dim + m.hidden * m.intermediate;
}

}  // namespace

// Fused ops are not in the graph of a model: their outputs, what they read and what stays inside
// are named here.
OpPlaces places_of(std::string_view op, const GridCase& shape) {
  if (op == kAddRmsNorm.name)
    return {places({"attn.residual", "mlp.norm"}), places({"embed", "attn.o"}), {}};
  if (op == kQkvMatmul.name)
    return {places({"attn.q", "attn.k", "attn.v"}), places({"attn.norm"}), {}};
  if (op == kGateUpSilu.name)
    return {places({"mlp.act"}), places({"mlp.norm"}), places({"mlp.gate", "mlp.up"})};
  if (op == kQkNormRopeKvWrite.name) {
    OpPlaces all = {places({"attn.q_rope", "attn.k_rope", "attn.kv"}),
                    places({"attn.q", "attn.k", "attn.v"}),
                    {}};
    if (shape.model.family != "qwen2") all.hidden = places({"attn.q_norm", "attn.k_norm"});
    all.turns = true;
    return all;
  }
  const Place place = place_of(shape.point);
  return {{place}, graph_of(shape.model).inputs_of(place), {}, place.point->op == OpKind::rope};
}

std::vector<GridCase> grid_of(std::string_view op) {
  std::vector<GridCase> all;
  for (const std::span<const OpGrid> grids : {row_grids(), attention_grids()})
    if (const auto found = std::ranges::find(grids, op, &OpGrid::op); found != grids.end())
      all = found->cases();
  check(!all.empty(), "there is no shape to try the op {} on", op);
  std::ranges::stable_sort(all, {}, numbers_in);
  return all;
}

std::vector<Trait> traits_of(const GridCase& shape, DType dtype) {
  std::vector<Trait> all = {{"dtype", std::string(lockstep::name_of(dtype))}};
  for (const Trait& trait : shape.traits) all.push_back(trait);
  all.push_back({"passes", kind_of(shape)});
  all.push_back({"positions", last_position(shape) > 65535 ? "past 65535" : "to 65535"});
  all.push_back({"values", name_of(shape.values)});
  bool whole = true;
  for (const Trait& trait : shape.traits) {
    const auto one_of = [&](auto... names) { return ((trait.name == names) || ...); };
    if (one_of("queries per KV head", "KV heads", "heads", "rows"))
      all.push_back({trait.name, trait.value == "1" ? "that are one" : "that are several"});
    if (one_of("head_dim", "queries per KV head")) {
      const bool is_power = std::has_single_bit(std::stoull(trait.value));
      all.push_back({trait.name, is_power ? "that is a power of 2" : "that is no power of 2"});
    }
    if (!one_of("width", "inputs", "outputs")) continue;
    const bool here = std::stoll(trait.value) % 32 == 0;
    all.push_back({trait.name, here ? "that is a multiple of 32" : "that is no multiple of 32"});
    whole = whole && here;
  }
  all.push_back({"widths", whole ? "that are multiples of 32" : "that are no multiples of 32"});
  return all;
}

std::string text_of(const std::vector<Trait>& traits) {
  std::string text;
  for (const Trait& trait : traits) {
    const bool derived =
        trait.value.starts_with("that is ") || trait.value.starts_with("that are ");
    const bool plain = trait == Trait{"positions", "to 65535"} || trait == Trait{"values", "usual"};
    if (derived || plain) continue;
    const bool bare = trait.name == "dtype" || trait.name == "passes";
    text += text.empty() ? "" : ", ";
    text += bare ? trait.value : fmt::format("{} {}", trait.name, trait.value);
  }
  return text;
}

}  // namespace lockstep
