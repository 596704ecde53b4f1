#pragma once

#include <deque>
#include <string>
#include <vector>

#include "src/weights/checkpoint.h"

namespace lockstep {

// One layer's tensors in the run's dtype. A bias or norm that the model lacks is an empty view.
struct LayerWeights {
  TensorView attn_norm;       // [hidden]
  TensorView q, q_bias;       // [heads * head_dim, hidden], [heads * head_dim]
  TensorView k, k_bias;       // [kv_heads * head_dim, hidden], [kv_heads * head_dim]
  TensorView v, v_bias;       // as k
  TensorView q_norm, k_norm;  // [head_dim]
  TensorView o, o_bias;       // [hidden, heads * head_dim], [hidden]
  TensorView mlp_norm;        // [hidden]
  TensorView gate, up;        // [intermediate, hidden]
  TensorView down;            // [hidden, intermediate]
  // In place of gate, up and down, in a layer of experts: one entry an expert.
  TensorView router;                               // [experts, hidden]
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
  TensorView lm_head;     // [vocab, hidden]

 private:
  TensorView load(const Checkpoint& checkpoint, const std::string& name, DType dtype,
                  Device device);

  std::deque<Tensor> copies_;  // a deque: views point into its elements
};

// The memory that the weights of such a model take on that device; on the CPU as if each were
// copied.
int64_t weights_memory(const ModelConfig& config, DType dtype, Device device);

}  // namespace lockstep
