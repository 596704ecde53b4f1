// Ways in which q, k and v of one fused product are taken apart wrongly.
//
// Engines keep the three weights as one, in one of two orders: all rows of q, all of k and all of
// v; or, for each K/V head, the rows of its query heads, its k and its v. Who takes one for the
// other has right heads in wrong places, some of them of another of the three.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include "reference/hypotheses/rotary.h"

namespace lockstep {
namespace {

using at::Tensor;

bool makes_heads(const Asked& a) { return a.place().point->head_axis >= 0; }
// Heads of a fused q, k and v, all of them as they are right: [rows, heads and 2 kv heads, dim].
Tensor fused_heads(const Asked& a) {
  const int layer = a.place().layer;
  std::vector<Tensor> all;
  for (const char* name : {"attn.q", "attn.k", "attn.v"}) {
    const Place place{find_point(name), layer};
    const Tensor y = a.model().weights.product(place, a.input(0).flatten(1), nullptr, nullptr);
    all.push_back(a.model().weights.has_bias(*a.place().point) ? y + a.model().weights.bias(place)
                                                               : y);
  }
  return at::cat(all, 1).unflatten(1, {-1, a.model().recipe.head_dim});
}
// Where the heads of q, k and v stand in a row that has those of each K/V head together, q q k v:
// by their number in a row that has all of q, all of k and all of v.
std::vector<int64_t> places_by_group(const Recipe& r) {
  const int64_t group = r.heads / r.kv_heads;
  std::vector<int64_t> all;
  for (int64_t h = 0; h < r.heads; ++h) all.push_back(h / group * (group + 2) + h % group);
  for (const int64_t after : {group, group + 1})
    for (int64_t h = 0; h < r.kv_heads; ++h) all.push_back(h * (group + 2) + after);
  return all;
}
// Those of this op, of all heads in another order.
Tensor split_otherwise(const Asked& a, const std::vector<int64_t>& from) {
  const Recipe& r = a.model().recipe;
  const std::string_view name = a.place().point->name;
  const int64_t count = name == "attn.q" ? r.heads : r.kv_heads;
  const int64_t first = name == "attn.q" ? 0 : name == "attn.k" ? r.heads : r.heads + r.kv_heads;
  const Tensor own = at::tensor(from).narrow(0, first, count).to(a.got().device());
  return fused_heads(a).index_select(1, own);
}
Tensor split_by_group(const Asked& a, double) {
  return makes_heads(a) ? split_otherwise(a, places_by_group(a.model().recipe)) : Tensor();
}
Tensor split_as_if_in_blocks(const Asked& a, double) {
  if (!makes_heads(a)) return {};
  const std::vector<int64_t> places = places_by_group(a.model().recipe);
  std::vector<int64_t> from(places.size());
  for (size_t h = 0; h < places.size(); ++h)
    from.at(static_cast<size_t>(places[h])) = static_cast<int64_t>(h);
  return split_otherwise(a, from);
}

// A rotation of all heads of a fused q, k and v: V is to be left as it is.
Tensor turned_by_rope(const Asked& a, double) {
  if (!makes_heads(a) || a.right().dim() != 3) return {};
  return RightRotation::of(a, a.right(), RightRotation::right_positions(a));
}

constexpr Hypothesis kFused[] = {
    {"heads of a fused q, k, v that has all of each taken as if by K/V head (q q k v)",
     split_by_group},
    {"heads of a fused q, k, v that has them by K/V head (q q k v) taken as if all of each",
     split_as_if_in_blocks},
    {"its heads turned by RoPE", turned_by_rope},
};

}  // namespace

std::span<const Hypothesis> fused_qkv_hypotheses() { return kFused; }

}  // namespace lockstep
