// K/V heads are those that the rank's query heads read. Where ranks outnumber them each is in
// several ranks; where they do not divide, a rank may have more of them than another.
#include "src/ranks/rank_plan.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "probes/points.h"

namespace lockstep {
namespace {

Part equal_part(int64_t whole, int rank, int ranks, const char* what) {
  check(whole % ranks == 0, "{} {} cannot be shared by {} ranks: give --tp a divisor of {}", whole,
        what, ranks, whole);
  const int64_t count = whole / ranks;
  return {rank * count, count};
}

// A kernel maps its query head i to the K/V head i / (heads / K/V heads): that must be the head
// that the whole model maps it to.
Part kv_part(const ModelConfig& c, const Part& heads, int ranks) {
  const int64_t group = c.heads / c.kv_heads;
  const int64_t first = heads.first / group, last = (heads.first + heads.count - 1) / group;
  const Part part{first, last - first + 1};
  bool fits = heads.count % part.count == 0;
  for (int64_t i = 0; fits && i < heads.count; ++i)
    fits = first + i / (heads.count / part.count) == (heads.first + i) / group;
  check(fits,
        "{} query heads over {} K/V heads cannot be shared by {} ranks: the {} heads of a rank "
        "would read unequal numbers of K/V heads; give another --tp",
        c.heads, c.kv_heads, ranks, heads.count);
  return part;
}

}  // namespace

bool is_partial(const Point& point) { return point.name.ends_with("partial"); }

bool is_of_stream(const Point& p) {
  return is_sum(p) || p == point("attn.residual") || p == point("mlp.residual") ||
         p == point("mlp.combine");
}

bool is_gathered(const Point& p) {
  return p == point("attn.norm") || p == point("mlp.norm") || p == point("final.norm");
}

bool is_sum(const Point& point) {
  return std::ranges::any_of(kPoints, [&](const Point& p) {
    return is_partial(p) && p.name.starts_with(point.name) &&
           p.name.size() == point.name.size() + std::string_view("_partial").size();
  });
}

RankPlan plan_of(const ModelConfig& whole, int rank, int ranks) {
  RankPlan plan{.rank = rank, .ranks = ranks, .whole = whole, .local = whole};
  plan.heads = equal_part(whole.heads, rank, ranks, "query heads");
  plan.kv_heads = kv_part(whole, plan.heads, ranks);
  plan.inner = equal_part(whole.intermediate, rank, ranks, "values of the MLP");
  if (whole.experts.count > 0)
    plan.expert_inner = equal_part(whole.experts.intermediate, rank, ranks, "values of an expert");
  plan.vocab_room = (whole.vocab + ranks - 1) / ranks;
  plan.vocab.first = plan.mask_first = rank * plan.vocab_room;
  plan.vocab.count = std::min(plan.vocab_room, whole.vocab - plan.vocab.first);
  check(plan.vocab.count > 0, "a vocabulary of {} cannot be shared by {} ranks: give a lower --tp",
        whole.vocab, ranks);
  plan.local.heads = plan.heads.count;
  plan.local.kv_heads = plan.kv_heads.count;
  plan.local.intermediate = plan.inner.count;
  plan.local.experts.intermediate = plan.expert_inner.count;
  plan.local.o_bias = whole.o_bias && rank == 0;
  return plan;
}

Part RankPlan::rows_of(int64_t tokens) const {
  const int64_t first = std::min(rank * row_room(tokens), tokens);
  return {first, std::min(row_room(tokens), tokens - first)};
}

std::optional<Shard> RankPlan::shard_of(const Point& p) const {
  const auto along = [](int axis, const Part& part, int64_t extent) {
    return Shard{.axis = axis, .offset = part.first, .extent = extent};
  };
  if (is_partial(p)) return Shard{.axis = 1, .offset = rank, .extent = ranks};
  const bool of_q = p.name.starts_with("attn.q") || p == point("attn.out");
  if (p.head_axis >= 0)
    return of_q ? along(p.head_axis, heads, whole.heads)
                : along(p.head_axis, kv_heads, whole.kv_heads);
  if (p == point("mlp.gate") || p == point("mlp.up") || p == point("mlp.act"))
    return along(1, inner, whole.intermediate);
  if (p == point("mlp.expert_gate") || p == point("mlp.expert_up") || p == point("mlp.expert_act"))
    return along(2, expert_inner, whole.experts.intermediate);
  return {};
}

}  // namespace lockstep
