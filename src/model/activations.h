#pragma once

#include "kernels/memory.h"
#include "src/weights/config.h"

namespace lockstep {

// The buffers that one pass writes, reused from pass to pass. Every point has its own, so that a
// tensor stays whole until the layer ends.
class Activations {
 public:
  Activations(const ModelConfig& config, DType dtype, Device device);

  // Makes every view below as long as a pass of `tokens` rows, `logit_rows` of which get logits.
  void resize(int64_t tokens, int64_t logit_rows);

  TensorView stream;                              // [tokens, hidden] the residual stream
  TensorView norm;                                // [tokens, hidden]
  TensorView q, q_norm, q_rope;                   // [tokens, heads, head_dim]
  TensorView k, k_norm, k_rope, v;                // [tokens, kv_heads, head_dim]
  TensorView attention;                           // [tokens, heads, head_dim]
  TensorView branch;                              // [tokens, hidden] what is added to the stream
  TensorView gate, up, act;                       // [tokens, intermediate]
  TensorView router;                              // [tokens, experts]
  TensorView experts;                             // [tokens, chosen]  int32
  TensorView weights;                             // [tokens, chosen]
  TensorView expert_gate, expert_up, expert_act;  // [tokens, chosen, experts' intermediate]
  TensorView expert_down;                         // [tokens, chosen, hidden]
  TensorView last;                                // [logit rows, hidden] final norm of those rows
  TensorView logits;                              // [logit rows, vocab]
  TensorView token;                               // [logit rows]  int32

 private:
  const ModelConfig& config_;
  DType dtype_;
  Device device_;
  int64_t capacity_ = 0, logit_capacity_ = 0;
  std::vector<Tensor> storage_, logit_storage_;
};

}  // namespace lockstep
