// The arguments of the persistent decode step, and who computes what. Work is cut into units: eight
// rows of a matrix (an octet), or a share of the positions of a KV head. Units are dealt to the
// blocks in the order of the step, one after another, so that no block has more of all of them than
// others. Every role of a block (who copies weights ahead, who computes) walks the same list.
#pragma once

#include <cuda_bf16.h>

#include "kernels/base/bad_index.h"
#include "kernels/cuda/device.cuh"

namespace lockstep::persistent {

using bf16 = __nv_bfloat16;

constexpr int kWarps = 8;                 // that compute
constexpr int kThreads = kWarps * kWarp;  // of them
constexpr int kBlock = kThreads + kWarp;  // with the warp that copies ahead
constexpr int kOctet = 8;                 // rows of a matrix
constexpr int kSlotColumns = 1024;        // of an octet in a slot of the ring
constexpr int kSlotBytes = kOctet * kSlotColumns * 2;
constexpr int kMostRows = 8;
constexpr int kMostLayers = 64;
constexpr int kParts = 6, kMarks = 3;  // of a layer in a timeline
constexpr int kTile = 16;              // positions that a warp takes at once
constexpr int kLeastTiles = 4;         // of a share of a context, unless it is the whole
constexpr int kMostShares = 64;        // of a context

struct Layer {
  const bf16 *attn_norm, *mlp_norm, *q, *k, *v, *o, *gate, *up, *down;
  const bf16 *q_bias, *k_bias, *v_bias, *q_norm, *k_norm;  // or null
  bf16 *cache_k, *cache_v;
  // Taps, or null.
  bf16 *norm_out, *q_out, *k_out, *v_out, *q_norm_out, *k_norm_out, *q_rope_out, *k_rope_out;
  bf16 *attention_out, *o_out, *attn_residual_out;
  bf16 *mlp_norm_out, *gate_out, *up_out, *act_out, *down_out, *mlp_residual_out;
};

// The words that one launch leaves to the next.
struct Control {
  uint32_t epoch;    // layers computed in all steps before
  uint32_t done;     // blocks that ended
  uint32_t aborted;  // a wait was given up
  uint32_t unused;
  unsigned long long best[kMostRows];  // the best token so far
};

struct Step {
  Layer layer[kMostLayers];
  const bf16 *embed, *final_norm, *lm_head;
  bf16 *embed_out, *final_norm_out, *logits;
  int32_t* token;
  const int32_t *tokens, *positions, *context, *table;
  const int64_t* slots;
  const float *cos, *sin;
  int64_t pool;  // slots of the cache
  int rows, layers, hidden, heads, kv_heads, inner, vocab, page_size, table_width, entries;
  int widest;  // columns of the widest input of a product
  int ring_slots;
  float eps, score_scale;  // score_scale: of exponents of 2
  Control* control;
  uint32_t* exchange;  // [rows][words of a row]
  unsigned long long* partial;
  BadIndex* bad;
  unsigned long long* timeline;  // [blocks][layers][parts][marks], or null
};

// The vectors that blocks hand to each other, within the words of a row.
struct Exchange {
  int qkv, attention, attn_residual, act, mlp_residual, words;
  __host__ __device__ Exchange(int hidden, int q, int kv, int inner)
      : qkv(0),
        attention(q + 2 * kv),
        attn_residual(attention + q),
        act(attn_residual + hidden),
        mlp_residual(act + inner),
        words(mlp_residual + hidden) {}
};

// The unit of a list that a block begins with, where `dealt` units were dealt before; its next ones
// are as far apart as there are blocks.
__device__ inline int first_unit(int dealt) {
  const int blocks = static_cast<int>(gridDim.x), at = dealt % blocks;
  const int block = static_cast<int>(blockIdx.x);
  return block >= at ? block - at : block - at + blocks;
}

// A share of a context: tiles of positions of one KV head.
struct Share {
  int row, head, index, shares, first_tile, tiles, context;
  __device__ bool has_last() const { return index == shares - 1; }
};

__device__ inline int context_of(const Step& a, int row) {
  const int most = a.table_width * a.page_size, found = a.context[row];
  return found < 0 ? 0 : found < most ? found : most;
}

// A context is cut by its length alone, so that a row's sums do not depend on the others.
__device__ inline int shares_of(const Step& a, int context) {
  const int tiles = (context + kTile - 1) / kTile;
  const int most = min(kMostShares, max(1, static_cast<int>(gridDim.x) / a.kv_heads));
  // A tile a warp is a block's work, and needs no sum of shares.
  return tiles <= kWarps ? 1 : min(tiles / kLeastTiles, most);
}

__device__ inline int shares_of_all(const Step& a) {
  int all = 0;
  for (int row = 0; row < a.rows; ++row) all += shares_of(a, context_of(a, row)) * a.kv_heads;
  return all;
}

__device__ inline Share share_at(const Step& a, int index) {
  for (int row = 0;; ++row) {
    const int context = context_of(a, row), shares = shares_of(a, context);
    if (index >= shares * a.kv_heads && row + 1 < a.rows) {
      index -= shares * a.kv_heads;
      continue;
    }
    const int tiles = (context + kTile - 1) / kTile, share = index % shares;
    const int first = static_cast<int>(int64_t{tiles} * share / shares);
    const int end = static_cast<int>(int64_t{tiles} * (share + 1) / shares);
    return {row, index / shares, share, shares, first, end - first, context};
  }
}

// Octets of a layer's product with q, k and v after each other.
__device__ inline const bf16* qkv_octet(const Step& a, const Layer& w, int q, int kv, int unit) {
  const int row = unit * kOctet;
  const int64_t width = a.hidden;
  if (row < q) return w.q + row * width;
  return row < q + kv ? w.k + (row - q) * width : w.v + (row - q - kv) * width;
}

}  // namespace lockstep::persistent
