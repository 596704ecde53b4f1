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
  uint32_t epoch;                      // layers computed in all steps before
  uint32_t done;                       // blocks that ended
  uint32_t aborted;                    // a wait was given up
  uint32_t cluster_epoch;              // as epoch, of the steps by clusters
  unsigned long long best[kMostRows];  // the best token so far
};

struct Step {
  Layer layer[kMostLayers];
  const bf16 *embed, *final_norm, *lm_head;
  float *rope_cos_out, *rope_sin_out;
  bf16 *embed_out, *final_norm_out, *logits;
  int32_t* token;
  const int32_t *tokens, *positions, *context, *table;
  const int64_t* slots;
  const float *cos, *sin;
  int64_t pool;  // slots of the cache
  int rows, layers, hidden, heads, kv_heads, inner, vocab, page_size, table_width, entries;
  int input_columns;  // of the input of a product, that a block holds at once
  int ring_slots;
  float eps, score_scale;  // score_scale: of exponents of 2
  Control* control;
  uint32_t* exchange;  // [rows][words of a row]
  unsigned long long* partial;
  BadIndex* bad;
  uint32_t* progress;            // [DecodeProgress(layers, vocab).words()], or null
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

// The parts of a layer, in the order of kDecodeParts, and what comes after all layers.
enum class Part : int { qkv, attention, reduction, o, gate_up, down, head };
static_assert(static_cast<int>(Part::head) == kParts);

// A list of units: octets of up to three matrices of one width, after each other, or pairs of one
// of the first and one of the second.
struct List {
  const bf16 *first, *second, *third;
  int second_at, third_at, units, width;
  bool pairs;

  __device__ const bf16* octet(int unit) const {
    const bool is_first = pairs || unit < second_at, is_second = unit < third_at;
    const int from = is_first ? 0 : is_second ? second_at : third_at;
    return rows(is_first ? first : is_second ? second : third, unit - from);
  }
  __device__ const bf16* other_of_pair(int unit) const { return rows(second, unit); }

 private:
  __device__ const bf16* rows(const bf16* matrix, int unit) const {
    return matrix + int64_t{unit} * kOctet * width;
  }
};

// The list of a part, in a model with `q` and `kv` rows of those products.
__device__ inline List list_of(const Step& a, const Layer& w, Part part, int q, int kv) {
  const auto one = [](const bf16* matrix, int rows, int width) {
    const int units = rows / kOctet;
    return List{matrix, nullptr, nullptr, units, units, units, width, false};
  };
  switch (part) {
    case Part::qkv:
      return {w.q, w.k, w.v, q / kOctet, (q + kv) / kOctet, (q + 2 * kv) / kOctet, a.hidden, false};
    case Part::o:
      return one(w.o, a.hidden, q);
    case Part::gate_up:
      return {w.gate, w.up, nullptr, 0, 0, a.inner / kOctet, a.hidden, true};
    case Part::down:
      return one(w.down, a.hidden, a.inner);
    default:
      return one(a.lm_head, a.vocab, a.hidden);
  }
}
// The part with a list after that one.
__device__ inline Part next_list(Part part) {
  return part == Part::qkv       ? Part::o
         : part == Part::o       ? Part::gate_up
         : part == Part::gate_up ? Part::down
                                 : Part::qkv;
}

// How many units were dealt so far, as the block that the next one goes to.
struct Dealt {
  int block = 0;
  // The unit of the next list that this block begins with; its next ones are as far apart as there
  // are blocks.
  __device__ int first() const {
    const int own = static_cast<int>(blockIdx.x);
    return own >= block ? own - block : own - block + static_cast<int>(gridDim.x);
  }
  __device__ void add(int units) { block = (block + units) % static_cast<int>(gridDim.x); }
};

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

// The contexts of the rows and how they are cut, in shared memory.
struct Cuts {
  int context[kMostRows], shares[kMostRows], all;
  __device__ void fill(const Step& a) {  // by one thread
    all = 0;
    for (int row = 0; row < a.rows; ++row) {
      context[row] = context_of(a, row);
      shares[row] = shares_of(a, context[row]);
      all += shares[row] * a.kv_heads;
    }
  }
  __device__ Share share(const Step& a, int index) const {
    int row = 0;
    for (; index >= shares[row] * a.kv_heads; ++row) index -= shares[row] * a.kv_heads;
    const int tiles = (context[row] + kTile - 1) / kTile, count = shares[row];
    const int share = index % count, first = tiles * share / count;
    return {row,         index / count, share, count, first, tiles * (share + 1) / count - first,
            context[row]};
  }
};

}  // namespace lockstep::persistent
