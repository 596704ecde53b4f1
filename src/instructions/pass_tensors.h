#pragma once

#include <vector>

#include "src/model/layer_executor.h"

namespace lockstep {

// All tensors of a pass. Views of the executor's buffers and of the model's weights: they hold for
// one pass, on the CPU.
struct PassTensors {
  // Where the numbers of a layer lie in a pass that keeps them all, and what they are computed
  // with.
  struct Layer {
    TensorView attn_norm_weight, mlp_norm_weight;  // [hidden]
    const LayerWeights* weights = nullptr;         // borrowed
    KvCache cache;
    TensorView in, attn_norm;         // [tokens, hidden]; in: the stream
    TensorView q, q_norm, q_rope;     // [tokens, heads, head_dim]
    TensorView k, k_norm, k_rope, v;  // [tokens, kv_heads, head_dim]
    // Each share of the pages has an attention of its own, in fp32 (attn.partial of points.h).
    TensorView partial;             // [tokens, shares, heads, head_dim]
    TensorView lse;                 // [tokens, shares, heads]
    TensorView out;                 // [tokens, heads, head_dim] of attention
    TensorView o, attn_residual;    // [tokens, hidden]
    TensorView mlp_norm;            // [tokens, hidden]
    TensorView gate, up, act;       // [tokens, intermediate]
    TensorView down, mlp_residual;  // [tokens, hidden]
    // Tensors of a layer of experts, instead of gate to down.
    TensorView router;                              // [tokens, experts]
    TensorView experts;                             // [tokens, chosen]  int32
    TensorView expert_weights;                      // [tokens, chosen]
    TensorView expert_gate, expert_up, expert_act;  // [tokens, chosen, experts' intermediate]
    TensorView expert_down;                         // [tokens, chosen, hidden]
    TensorView combined;                            // [tokens, hidden]
  };

  std::vector<Layer> layers;
  TensorView final_norm_weight, final_norm;  // [hidden], [tokens, hidden]
  WeightView lm_head;                        // [vocab, hidden]
  TensorView logits;                         // [logit rows, vocab]
};

}  // namespace lockstep
