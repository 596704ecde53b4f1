// A whole decode step in one launch: each row is one token of one request.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"
#include "kernels/paged_attention.h"

namespace lockstep {

// A layer of the step: weights and cache, and memory for each tensor that is made on the way. An
// empty tap is stored nowhere. All bf16; shapes as the ops of the table have them, weights plain.
struct DecodeLayer {
  TensorView attn_norm, mlp_norm;     // [hidden]
  TensorView q, k, v, o;              // [n, k]
  TensorView q_bias, k_bias, v_bias;  // [n], or empty
  TensorView q_norm, k_norm;          // [head_dim], or empty
  TensorView gate, up, down;          // [n, k]
  KvCache cache;
  // Outputs, each a tap.
  TensorView norm_out, q_out, k_out, v_out, q_norm_out, k_norm_out, q_rope_out, k_rope_out;
  TensorView attention_out, o_out, attn_residual_out;
  TensorView mlp_norm_out, gate_out, up_out, act_out, down_out, mlp_residual_out;
};

// The parts of a layer, by the names of a schedule's opcodes, and what is marked of each.
inline constexpr std::array<std::string_view, 6> kDecodeParts = {
    "norm_qkv",   "rope_append_attention", "attention_reduction",
    "o_residual", "norm_gate_up_silu",     "down_residual"};
inline constexpr std::array<std::string_view, 3> kDecodeMarks = {"begin", "waited", "end"};

inline constexpr int64_t kMostDecodeBlocks = 256;

// The words by which a step by clusters says how far it is, to whoever reads its taps meanwhile: of
// each layer, of some columns of the logits each, and of the tokens.
struct DecodeProgress {
  static constexpr uint32_t kOfLayer = 144, kOfColumns = 112;  // what they come to
  static constexpr int64_t kColumns = 3584;
  int64_t layers, vocab;

  int64_t token_word() const { return layers + (vocab + kColumns - 1) / kColumns; }
  int64_t bytes() const { return (token_word() + 1) * int64_t{sizeof(uint32_t)}; }
};

struct DecodeStep {
  std::span<const DecodeLayer> layers;
  TensorView embed, final_norm, lm_head;  // [vocab, hidden], [hidden], [vocab, hidden]
  int64_t heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0;
  float eps = 0;
  TensorView tokens, positions, slots;  // [rows]  int32, int32, int64
  TensorView cos, sin;                  // [entries, head_dim / 2]  fp32
  AttentionBatch attention;             // one query a request: row r is request r
  // Outputs: taps, then what the step is for.
  TensorView rope_cos_out, rope_sin_out;  // [rows, head_dim / 2]  fp32; of steps by clusters alone
  TensorView embed_out, final_norm_out;   // [rows, hidden]
  TensorView logits;                      // [rows, vocab]  bf16
  TensorView token;                       // [rows]  int32, as argmax
  // [kMostDecodeBlocks, layers, parts, marks]  int64, or empty: when each block (a multiprocessor)
  // began a part of a layer, had what it waited for, and ended; in ns of the device's clock. What a
  // block has nothing of stays as it was.
  TensorView timeline;
  // Memory of the step, in which one launch leaves what the next one goes on from: zero before the
  // first, and the same for every launch of as many rows.
  TensorView workspace;  // [decode_step_workspace(step)]  u8
  // [decode_step_packed(step)]  u8, or empty: the weights of the layers and lm_head once more, in
  // the order in which clusters of blocks read them, which computes the step faster. The memory is
  // the caller's, as long as steps are launched; with `pack` the launch writes it first.
  TensorView packed;
  bool pack = false;
  // [DecodeProgress::bytes()]  u8, or empty: zero before the launch of a step by clusters, and
  // raised by it. Digests that wait for it are queued after DigestMaker::wait_begun.
  TensorView progress;
};

// Computes what the ops of the table compute with the same roundings: a norm, a product with its
// bias, a sum, RoPE and SiLU(gate) * up each round once, at the store; attention keeps scores and
// probabilities in fp32. Sums are in another order than those of the table's ops. A row's bits
// depend on its own inputs alone, on how many rows the step has, and on the device's
// multiprocessors. Writes the new row of K and V into slots[r], unless that is negative. A wait
// within the launch that lasts longer than a step can is given up, and DeviceRuntime::wait says so.
// On CUDA devices of capability 9.0 or later. Source: Hazy Research's megakernels, 2025, for the
// form.
void decode_step_cuda(const OpContext& context, const DecodeStep& step);

// Throws Error, with what is built, unless the step has shapes that are: bf16, 1, 2, 4 or 8 rows,
// heads of 64 or 128, certain numbers of heads of q to one of K and V. Values are not looked at.
void check_decode_step(const DecodeStep& step);

// The bytes of packed weights that a step of these sizes can use: 0 unless it is of the Qwen3-0.6B
// shape, of 48 layers at most and 256 tokens at least, with at most 32768 positions, or 16384 of
// eight rows, in pages of a multiple of 16. decode_step_packed_cuda: on the device of its
// workspace, 0 unless that has seven GPCs of 16 free multiprocessors. A step without them is
// computed as any other.
int64_t decode_step_packed(const DecodeStep& step);
int64_t decode_step_packed_cuda(const DecodeStep& step);

// The bytes of workspace that a step of these sizes takes on any device.
int64_t decode_step_workspace(const DecodeStep& step);

}  // namespace lockstep
