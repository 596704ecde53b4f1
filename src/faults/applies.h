// The traits that a model must have for a fault to break anything: the column `applies` of the
// table in catalogue.cc.
#pragma once

#include <algorithm>

#include "src/weights/rope_tables.h"

namespace lockstep {

inline bool always(const ModelConfig&) { return true; }
inline bool fixed_tables(const ModelConfig& c) { return !depends_on_length(c.rope); }
inline bool has_qk_norm(const ModelConfig& c) { return c.qk_norm; }
inline bool has_wide_qk_norm(const ModelConfig& c) {
  return c.qk_norm && c.head_dim > 16 && c.head_dim % 16 == 0;
}
inline bool has_experts(const ModelConfig& c) { return !c.experts.layers.empty(); }
inline bool mixes_experts(const ModelConfig& c) { return has_experts(c) && c.experts.chosen > 1; }
inline bool normalises_experts(const ModelConfig& c) {
  return has_experts(c) && c.experts.normalised && c.experts.chosen < c.experts.count;
}
inline bool has_window(const ModelConfig& c) {
  return std::ranges::any_of(c.window, [](int64_t keys) { return keys > 0; });
}
inline bool has_yarn(const ModelConfig& c) {
  return c.rope.type == RopeType::yarn && c.rope.factor > 1;
}
inline bool has_own_theta(const ModelConfig& c) {
  return fixed_tables(c) && c.rope.theta != RopeConfig().theta;
}
inline bool has_groups(const ModelConfig& c) { return c.kv_heads > 1 && c.heads > c.kv_heads; }
inline bool has_two_pairs(const ModelConfig& c) { return c.head_dim >= 4; }
inline bool has_bias(const ModelConfig& c) { return c.qkv_bias; }
inline bool is_tied(const ModelConfig& c) { return c.tied; }
inline bool has_dense(const ModelConfig& c) { return std::ssize(c.experts.layers) < c.layers; }

}  // namespace lockstep
