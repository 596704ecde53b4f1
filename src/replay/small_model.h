// A checkpoint for one op: of the shapes that it needs, and as small as can be in all others.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/base/tensor.h"
#include "probes/graph.h"
#include "src/weights/checkpoint.h"

namespace lockstep {

// A model of one layer. A head is tied to the embedding, positions go to 2^22, and RoPE has a base
// of 10000.
struct SmallModel {
  std::string family = "qwen3";  // "qwen2", "qwen3", "qwen3_moe"
  int64_t hidden = 8, intermediate = 8, vocab = 8;
  int64_t heads = 1, kv_heads = 1, head_dim = 2;
  int64_t experts = 4, chosen = 2;  // of qwen3_moe, and what a token gets of them
  bool normalised = true;           // their weights
  bool bias = false;                // of q, k, v and o; qwen2 has those of q, k and v
  double eps = 1e-6;
  int64_t window = 0;  // keys that a query sees; 0: all
};

// The graph of its layer; without rotary tables RoPE makes its angles itself.
Graph graph_of(const SmallModel& model, bool rope_tables = false);

// Its checkpoint, all weights 0 but those that `fill` writes. It leaves no file behind.
using FillWeight = std::function<void(const std::string& name, const TensorView& weight)>;
// fill: gets each tensor by its name in the checkpoint, of `dtype`, with zeros in it.
Checkpoint checkpoint_of(const SmallModel& model, DType dtype, const FillWeight& fill = {});

}  // namespace lockstep
