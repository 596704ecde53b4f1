// Kernels of another hand: wrong ones and right ones, as a user of the C interface would plug them
// in, to try a judge with that was not written by whoever wrote them.
//
// They were written from what is known of how kernels go wrong (public threads of vLLM, SGLang,
// llama.cpp, FlashAttention, FlashInfer, CUTLASS, aiter and others; named where a kernel stands),
// from kernels/lockstep_ops.h and from the contracts in kernels/<op>.h. Nothing of the judge, of
// the reference or of the catalogue of faults was read for it.
//
// Each is one function of the C interface, for the CPU, for one thread. It takes no notice of the
// layer: whoever uses it chooses the layers. All are defined for every input that the contract
// allows: they write every element of their output, nothing else, and read nothing outside of what
// they are handed, so that a wrong one is wrong by its numbers alone.
//
// `other_hand_check` (check.cc) measures all of them against an fp64 reference of its own, on rows
// with outlier channels, several widths, ragged passes over shuffled pages, groups of 1, 2 and 7
// heads, contexts to 1000 keys. Its unit is the ulp of the output's dtype, of what an element is
// off beyond
// - half an ulp, which is correct rounding,
// - the ordinary error of sums in fp32: (4 + 2 sqrt(n)) 2^-24 of the sum of the absolute values of
//   the n terms, and in attention the same of each score, as much as its key matters,
// - the roundings that the kernel's contract names.
// A right kernel is at 0 in every dtype that it is for; a wrong one is above 0 in every one. The
// ulp is that of the exact value; of a wrong kernel, where sums may cancel, that of the size which
// results have there (the root mean square of the row, or the larger of the two), lest every error
// look gross at a result that is zero by chance. Ops of class exact (add, the gathers, kv_write,
// argmax, top_k) have no allowance, and each index that is another one counts 1.
#pragma once

#include <span>

namespace lockstep::other_hand {

struct OtherKernel {
  const char* name;    // unique, says what it does: "norm-sum-in-bf16"
  const char* symbol;  // of lockstep_ops.h, which it replaces: "lockstep_rms_norm"
  void* function;      // of exactly that signature
  bool right;          // no tool may call it wrong under the rounding below
  // Of a right one, the contract under which it is right; of a wrong one, that which it keeps but
  // for its bug.
  // - "fused": fp32 inside, rounded once at the store.
  // - "hf": norm: the normalised value to the dtype, before the weight. rope: cos and sin, both
  //   products and their sum. silu_mul: silu, then the product. attention: the probabilities before
  //   P V, all else in fp32, as flash attention on tensor cores. weighted_sum: each product and
  //   each partial sum, in the order of the choices; Hugging Face's order is that of the experts'
  //   ids, which the C interface does not hand to this op.
  // - "eager": attention: the scores after q k^T and again after the scaling, the probabilities
  //   after a softmax in fp32, and the output.
  // - "bias_after_store": linear: the product to the dtype, then the sum with the bias.
  // - "tf32": fp32 runs: both operands of products to tf32.
  // - "operands_bf16", "operands_fp16": fp32 runs: activations to that, before products.
  const char* rounding;
  // Globs, with commas between, of LockstepCall.point; "*": wherever the op is used. Kernels that
  // are named for a part of a model (a norm of heads, the logits) mean that part alone.
  const char* points;
  // In graph order, where its error shows first when it is active in one layer and what it needs is
  // there at all of its points. In models with experts read mlp.expert_act for mlp.act.
  const char* first_point;
  const char* dtypes;  // of runs in which it makes sense: "bf16,fp16,fp32"
  // What a run must have for it to show; "": nothing. "held to fused": in bf16 it is, on most
  // inputs, off by no more than another contract of the op (hf or eager) allows one of its own
  // kernels, so that it shows only where fused is what the kernel is held to. "; " stands between
  // two needs.
  const char* needs;
  // Of a wrong one, what other_hand_check measured: its largest error on the inputs there, in the
  // unit above, in bf16 or else in the first of its dtypes; 1e9 stands for Inf and NaN.
  double least_ulp;
  const char* says;  // one line for people
};

// All of them, in the order of the ops in a model.
std::span<const OtherKernel> other_kernels();

}  // namespace lockstep::other_hand
