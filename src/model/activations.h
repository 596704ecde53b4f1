#pragma once

#include <vector>

#include "kernels/base/memory.h"
#include "src/weights/config.h"

namespace lockstep {

// The activation buffers of a pass, owned by the model and reused from pass to pass. One pass at a
// time uses them. The views hold until the next resize() or, of those that a half of a layer makes,
// next_half().
class Activations {
 public:
  // How long a tensor stays whole: until another half of a layer (its attention, its MLP) makes
  // its own, or until the next pass.
  enum class Lifetime : uint8_t { layer, pass };

  // over_ranks: also of what a rank adds to a sum, where tensors stay whole until the next pass.
  Activations(const ModelConfig& config, DType dtype, Device device,
              Lifetime lifetime = Lifetime::layer, bool over_ranks = false);

  Lifetime lifetime() const { return lifetime_; }

  // Makes every view below as long as a pass of `tokens` rows, `logit_rows` of which get logits.
  void resize(int64_t tokens, int64_t logit_rows);

  // The device memory that it takes for passes of that many rows. In bytes, allocations rounded up
  // as the device rounds them.
  int64_t memory(int64_t tokens, int64_t logit_rows) const;

  // Begins a half of a layer, or what comes after the last one: from here on the views are of
  // memory that it may write. Returns the stream as it was before, which stays whole until the next
  // half begins.
  TensorView next_half();

  TensorView stream;                // [tokens, hidden] the residual stream
  TensorView rope_cos, rope_sin;    // [tokens, head_dim / 2]  fp32, to be shown
  TensorView norm;                  // [tokens, hidden]
  TensorView q, q_norm, q_rope;     // [tokens, heads, head_dim]
  TensorView k, k_norm, k_rope, v;  // [tokens, kv_heads, head_dim]
  TensorView attention;             // [tokens, heads, head_dim]
  TensorView branch;                // [tokens, hidden] what is added to the stream
  // The share of a rank in `stream` or `branch`, and in expert_down, which are the sums. Empty
  // where tensors do not stay: a share is shown before the sum takes its place.
  TensorView partial, expert_partial;
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
  struct Buffer {
    TensorView Activations::*view;
    Shape row;
    DType dtype;
    int halves;  // of a layer that share one; 0: one for the pass
  };
  struct Held {
    Tensor block;
    Buffer buffer = {};
    std::vector<TensorView> copies = {};  // in the block; with Lifetime::layer, one
  };
  std::vector<Buffer> of_tokens() const;
  std::vector<Buffer> of_logit_rows() const;
  int64_t copies_of(const Buffer& buffer) const;
  void fit(const std::vector<Buffer>& buffers, int64_t rows, int64_t& capacity,
           std::vector<Held>& storage);

  const ModelConfig& config_;
  DType dtype_;
  Device device_;
  Lifetime lifetime_;
  bool over_ranks_;
  int64_t half_ = 0;
  int64_t capacity_ = 0, logit_capacity_ = 0;
  std::vector<Held> storage_, logit_storage_;
};

}  // namespace lockstep
