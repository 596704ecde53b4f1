// The weights of the reference. Owned by whoever computes (the oracle, a model, the hypotheses),
// one each; on a device the tensors themselves are shared among those of one checkpoint. Products
// may be asked for from one thread at a time, on a device from several; on the CPU LibTorch's
// threads share the blocks of one.
//
//   file (bf16) -> run's dtype -> widened block by block -> x W^T, sum |x||W|, halves of tf32
#pragma once

#include <memory>
#include <span>
#include <string>

#include "probes/graph.h"
#include "reference/reference.h"

namespace at {
class Tensor;
}
namespace c10 {
struct Device;
}

namespace lockstep {

class KeptWeights;  // kept_weights.h

// A checkpoint's weights as a run holds them: cast to the run's dtype, then widened exactly to the
// dtype that is computed in (fp32 or fp64). Nothing wide is kept: a weight is widened each time a
// block of it is used, which is faster than reading a widened copy from memory would be. On a CUDA
// device its weights are kept in the run's dtype, once for all that read a checkpoint there, and
// what is widened at a time takes less than 1 GB. Results are in `wide`, on device().
class HeldWeights {
 public:
  // The weights of a product whose operands are rounded to tf32.
  struct Tf32 {
    const at::Tensor* x_halves;  // per element of x, its spacing where it lay halfway; else 0
    at::Tensor* halves;          // filled in: what operands that lay halfway may move the result by
  };

  // Borrows the checkpoint.
  HeldWeights(const Checkpoint& checkpoint, const ReferenceOptions& options, DType wide);

  const ModelConfig& config() const { return checkpoint_.config(); }
  DType wide() const { return wide_; }
  // Where x must be, and y is.
  c10::Device device() const;

  // The weight of a norm. [hidden], or [head_dim] for the norms of heads. Not on device() but
  // `where`: there, or in host memory.
  at::Tensor norm(const Place& place, const c10::Device& where) const;
  at::Tensor norm(const Place& place) const;
  // The whole weight of the linear op at `place`: [out, in].
  at::Tensor weight(const Place& place) const;
  // Rows of the embedding: [tokens, hidden], `where` likewise. Throws Error for an id outside the
  // vocabulary.
  at::Tensor embedding(std::span<const int32_t> tokens, const c10::Device& where) const;
  at::Tensor embedding(std::span<const int32_t> tokens) const;
  // By configuration and not by what the file has: a stray tensor is no bias.
  bool has_bias(const Point& point) const;
  // [out].
  at::Tensor bias(const Place& place) const;
  // y = x W^T of the linear op at `place`: x [tokens, in], y [tokens, out]. With `magnitude`, that
  // too: sum |x||W|. tf32: of W rounded to that; null: of W. Rounded as LibTorch's matrix product
  // in `wide` rounds, each row of W whole. Throws Error where the rows of x are not as wide as W.
  at::Tensor product(const Place& place, const at::Tensor& x, at::Tensor* magnitude,
                     const Tf32* tf32) const;
  // The same with the bias, where there is one.
  at::Tensor linear(const Place& place, const at::Tensor& x) const;
  // The same of each chosen expert: chosen [tokens, k] int32, x [tokens, in] or [tokens, k, in],
  // y [tokens, k, out]. Throws Error for a choice that is no expert.
  at::Tensor experts(const Place& place, const at::Tensor& x, const at::Tensor& chosen,
                     at::Tensor* magnitude, const Tf32* tf32) const;
  // g W of the linear op at `place`: the derivative by x of the sum of g y, g [tokens, out],
  // [tokens, in].
  at::Tensor back(const Place& place, const at::Tensor& g) const;
  // The same of each chosen expert: g [tokens, k, out], [tokens, k, in].
  at::Tensor experts_back(const Place& place, const at::Tensor& g, const at::Tensor& chosen) const;

 private:
  // The tensor as it is in the file, or on the device in the run's dtype.
  at::Tensor stored(const std::string& name) const;
  at::Tensor stored(const std::string& name, const c10::Device& where) const;
  at::Tensor product(const std::string& name, const at::Tensor& x, at::Tensor* magnitude,
                     const Tf32* tf32) const;
  // The product of few rows on the device, into y and `magnitude`.
  void multiply_there(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& y,
                      const at::Tensor* magnitude) const;
  at::Tensor back(const std::string& name, const at::Tensor& g) const;
  at::Tensor widened(const at::Tensor& part) const;
  at::Tensor whole(const std::string& name) const;

  const Checkpoint& checkpoint_;
  DType run_, wide_;
  int threads_, gpu_;
  std::shared_ptr<KeptWeights> kept_;  // null on the CPU
};

}  // namespace lockstep
