#pragma once

#include <deque>
#include <string>
#include <vector>

#include "src/weights/checkpoint.h"

namespace lockstep {

// One layer's tensors in the run's dtype. A bias or norm that the model lacks is an empty view.
struct LayerWeights {
  TensorView attn_norm;               // [hidden]
  WeightView q, k, v;                 // [heads * head_dim, hidden], [kv_heads * head_dim, hidden]
  TensorView q_bias, k_bias, v_bias;  // [heads * head_dim], [kv_heads * head_dim]
  TensorView q_norm, k_norm;          // [head_dim]
  WeightView o;                       // [hidden, heads * head_dim]
  TensorView o_bias;                  // [hidden]
  TensorView mlp_norm;                // [hidden]
  WeightView gate, up;                // [intermediate, hidden]
  WeightView down;                    // [hidden, intermediate]
  // In place of gate, up and down, in a layer of experts: one entry an expert.
  WeightView router;                               // [experts, hidden]
  std::vector<TensorView> expert_gate, expert_up;  // [intermediate, hidden]
  std::vector<TensorView> expert_down;             // [hidden, intermediate]
};

// A checkpoint's tensors by meaning. On the CPU mapped memory where the dtype already fits, else
// converted copies that this object owns; on another device always its own copies.
class Weights {
 public:
  // The checkpoint must outlive the weights. Throws Error when the device has no room for them.
  Weights(const Checkpoint& checkpoint, DType dtype, Device device = Device::cpu);
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  TensorView embed;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  TensorView final_norm;  // [hidden]
  WeightView lm_head;     // [vocab, hidden]

  // The memory that the weights of such a model take on that device; on the CPU as if each were
  // copied.
  static int64_t memory(const ModelConfig& config, DType dtype, Device device);

 private:
  TensorView load(const TensorView& tensor, DType dtype, Device device);

  std::deque<Tensor> copies_;  // a deque: views point into its elements
};

}  // namespace lockstep
