// Schedules of decode steps, made for sizes by chance or by name.
#pragma once

#include <random>

#include "src/schedule/make_schedule.h"

namespace lockstep {

inline int64_t between(std::mt19937_64& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
}

// Sizes up to these, and nothing that they would have in common; some layers of one model in three
// have experts.
inline ScheduledModel some_model(std::mt19937_64& random, int64_t layers, int64_t rows) {
  const int64_t kv_heads = between(random, 1, 3);
  ScheduledModel model = {.layers = between(random, 1, layers),
                          .hidden = between(random, 1, rows),
                          .heads = kv_heads * between(random, 1, 3),
                          .kv_heads = kv_heads,
                          .head_dim = 2 * between(random, 1, 6),
                          .intermediate = between(random, 4, 2 * rows),
                          .vocab = between(random, 1, 2 * rows),
                          .qk_norm = between(random, 0, 1) == 1};
  if (between(random, 1, 3) > 1) return model;
  model.experts = between(random, 1, 9);
  model.chosen = between(random, 1, std::min<int64_t>(model.experts, 3));
  model.expert_intermediate = between(random, 1, rows);
  for (int layer = 0; layer < model.layers; ++layer)
    if (between(random, 0, 2) > 0) model.expert_layers.push_back(layer);
  return model;
}

// Two layers, small enough to count by hand.
inline ScheduledModel two_layers() {
  return {.layers = 2,
          .hidden = 32,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 16,
          .intermediate = 64,
          .vocab = 48,
          .qk_norm = true};
}

inline ScheduledModel qwen3_600m() {
  return {.layers = 28,
          .hidden = 1024,
          .heads = 16,
          .kv_heads = 8,
          .head_dim = 128,
          .intermediate = 3072,
          .vocab = 151936,
          .qk_norm = true};
}
inline ScheduledModel qwen3_8b() {
  return {.layers = 36,
          .hidden = 4096,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .intermediate = 12288,
          .vocab = 151936,
          .qk_norm = true};
}

}  // namespace lockstep
