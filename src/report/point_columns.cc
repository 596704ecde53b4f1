#include "src/report/point_columns.h"

#include <algorithm>
#include <array>
#include <utility>

namespace lockstep {
namespace {

// In the order of kPoints: a point without a row here does not compile.
constexpr auto kColumns = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"embed", "emb"},         {"rope.cos", "cos"},       {"rope.sin", "sin"},
    {"attn.norm", "nrm"},     {"attn.q", "q"},           {"attn.k", "k"},
    {"attn.v", "v"},          {"attn.q_norm", "qn"},     {"attn.k_norm", "kn"},
    {"attn.q_rope", "qr"},    {"attn.k_rope", "kr"},     {"attn.kv", "kv"},
    {"attn.out", "att"},      {"attn.o", "o"},           {"attn.residual", "res"},
    {"mlp.norm", "nrm"},      {"mlp.gate", "gat"},       {"mlp.up", "up"},
    {"mlp.act", "act"},       {"mlp.down", "dwn"},       {"mlp.router", "rtr"},
    {"mlp.experts", "exp"},   {"mlp.weights", "wts"},    {"mlp.expert_gate", "egt"},
    {"mlp.expert_up", "eup"}, {"mlp.expert_act", "eac"}, {"mlp.expert_down", "edn"},
    {"mlp.combine", "cmb"},   {"mlp.residual", "res"},   {"final.norm", "nrm"},
    {"logits", "lgt"},        {"token", "tok"},
});

static_assert(
    [] {
      if (kColumns.size() != kPoints.size()) return false;
      for (size_t i = 0; i < kPoints.size(); ++i)
        if (kColumns[i].first != kPoints[i].name) return false;
      return true;
    }(),
    "kColumns wants a row for each point of probes/points.h, in the same order");

}  // namespace

std::string_view column_name_of(const Point& point) {
  return kColumns[static_cast<size_t>(order_of(point))].second;
}

std::vector<const Point*> layer_columns(const std::vector<Place>& places) {
  std::vector<const Point*> columns;
  for (const Point& point : kPoints)
    if (point.per_layer &&
        std::ranges::any_of(places, [&](const Place& p) { return *p.point == point; }))
      columns.push_back(&point);
  return columns;
}

}  // namespace lockstep
