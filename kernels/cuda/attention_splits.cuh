// One split of keys in a block of threads: shared by the kernels that give splits to blocks.
//
//   step 1, a block of 32 keys a warp      keys    0..31    32..63   64..95   96..127
//     S = Q K^T, P = exp(S - row_max)            warp 0   warp 1   warp 2   warp 3
//                                        ---- probabilities in shared memory, __syncthreads ----
//   step 2, columns of head_dim a warp     O = P V over all four blocks, in their order
//
// In a cluster a block has four more warps, which load the values and join step 2.
#pragma once

#include "kernels/cuda/attention_tile.cuh"

namespace lockstep {

constexpr int kBlocks = kSplitKeys / kBlockKeys;  // of a split; a warp each

// The columns of the output that each of so many warps sums.
template <int kDim, int kTeam>
constexpr int kColumnsPerWarp = (kDim / 16 + kTeam - 1) / kTeam * 16;

constexpr int kLowerRows = kTileRows / 2;

// The shared memory of a split. The probabilities of the lower eight rows, which are all rows of a
// decoding request, have room of their own, so that the next keys can be loaded while they are in
// use; those of the upper rows take the place of the keys.
template <typename T, int kDim>
struct SplitBuffers {
  static constexpr int kSteps = kBlockKeys / 16;
  using Probs = uint2[kWarp][kSteps * kTerms<T>];  // of a block: each lane its own

  KvBlock<T, kDim> blocks[kBlocks];
  alignas(16) Probs lower[kBlocks];
  float row_max[kBlocks][kTileRows];
  alignas(8) float correction[kBlocks][kLowerRows];  // what a block changes in the sums before it
  float row_sum[kBlocks][2][kWarp];

  // The probabilities of a block that this lane holds.
  __device__ uint2& probs(int half, int block, int step, int term) {
    static_assert(sizeof(Probs) <= sizeof(blocks[0].k));
    auto& all = half == 0 ? lower[block] : reinterpret_cast<Probs&>(blocks[block].k);
    return all[threadIdx.x % kWarp][step * kTerms<T> + term];
  }
};

// Writes the partial results of a tile's rows (AttentionArguments::partial) to where
// partial_of(half) points for this lane's two rows.
template <typename T, int kDim, int kColumns, typename PartialOf>
__device__ void write_partial(const Tile<T, kDim, kColumns>& tile, PartialOf partial_of) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (tile.token[half] < 0) continue;
    float* const to = partial_of(half);
    if (tile.column == 0 && lane % 4 == 0)
      to[kDim] = tile.softmax[half].row_max, to[kDim + 1] = tile.softmax[half].row_sum;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
      if (tile.has_column(n * 8))
        *reinterpret_cast<float2*>(to + tile.column + n * 8 + lane % 4 * 2) = {
            tile.acc[n][2 * half], tile.acc[n][2 * half + 1]};
  }
}

// The blocks of a split that hold visible keys.
struct WantedBlocks {
  int first;
  KeyRange keys;
  __device__ bool operator()(int block) const {
    const int at = first + block * kBlockKeys;
    return at < keys.end && at + kBlockKeys > keys.begin;
  }
};

// Scores the warp's own block of keys and turns the scores into probabilities for all warps, for
// kHalves of the rows, relative to the row_max up to and with this block. Calls scored() when the
// keys have been read.
template <int kHalves, typename T, int kDim, int kColumns, typename Scored>
__device__ void score_block(const AttentionArguments<T>& a, SplitBuffers<T, kDim>& split,
                            Tile<T, kDim, kColumns>& tile, const WantedBlocks& wanted,
                            Scored scored) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float p[kBlockKeys / 8][4];
  if (wanted(warp)) {
    const int at = wanted.first + warp * kBlockKeys;
    tile.score(a, split.blocks[warp], at, tile.all_visible(at), p);
    __syncwarp();
  }
  scored();
  if (wanted(warp)) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const float row_max = tile.block_row_max(p, half);
      if (lane % 4 == 0) split.row_max[warp][lane / 4 + 8 * half] = row_max;
    }
  }
  __syncthreads();
  if (!wanted(warp)) return;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    float before = kNegInf;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
      if (b < warp && wanted(b)) before = fmaxf(before, split.row_max[b][lane / 4 + 8 * half]);
    const float row_max = fmaxf(before, split.row_max[warp][lane / 4 + 8 * half]);
    split.row_sum[warp][half][lane] = tile.exp_scores(p, half, row_max);
    if (kHalves == 1 && lane % 4 == 0)
      split.correction[warp][lane / 4] = expf(before - finite_max(row_max));
  }
#pragma unroll
  for (int step = 0; step < SplitBuffers<T, kDim>::kSteps; ++step) {
    uint32_t probs[kTerms<T>][4];
    split_scores<T, kHalves>(p, step, probs);
#pragma unroll
    for (int term = 0; term < kTerms<T>; ++term)
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
        split.probs(half, warp, step, term) = {probs[term][half], probs[term][half + 2]};
  }
}

// Softmax and output sums of a split in a tile: a warp scores each block, then each warp sums its
// columns over all blocks, in their order. The bits are those that one warp alone would give.
template <typename T, int kDim, int kColumns, typename Scored>
__device__ void process_split(const AttentionArguments<T>& a, SplitBuffers<T, kDim>& split,
                              Tile<T, kDim, kColumns>& tile, const WantedBlocks& wanted,
                              Scored scored) {
  const int lane = threadIdx.x % kWarp;
  score_block<2>(a, split, tile, wanted, scored);
  cp_async_wait_group();
  __syncthreads();
  tile.begin_split();
#pragma unroll 1
  for (int b = 0; b < kBlocks; ++b) {
    if (!wanted(b)) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      tile.rescale(half, fmaxf(tile.softmax[half].row_max, split.row_max[b][lane / 4 + 8 * half]),
                   split.row_sum[b][half][lane]);
    if (tile.column >= kDim) continue;
    const int at = wanted.first + b * kBlockKeys;
    const bool mask_rows =
        !tile.all_visible(at) && tile.needs_row_masks(split.blocks[b], at, wanted.keys);
#pragma unroll
    for (int step = 0; step < SplitBuffers<T, kDim>::kSteps; ++step) {
      uint32_t probs[kTerms<T>][4];
#pragma unroll
      for (int term = 0; term < kTerms<T>; ++term)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint2 two = split.probs(half, b, step, term);
          probs[term][half] = two.x, probs[term][half + 2] = two.y;
        }
      tile.accumulate_pv(split.blocks[b], at, step, probs, mask_rows);
    }
  }
  tile.end_split();
}

// The same for a tile that holds the heads of one query, at most kLowerRows, as most tiles do when
// requests decode. P V is computed transposed, as V^T P^T, so that the empty upper rows cost no
// products. A lane has columns lane / 4 and lane / 4 + 8 of sixteen, and of each the heads
// 2 (lane % 4) and the next. Every number is the one that a Tile would have.
template <typename T, int kDim, int kColumns>
class OneQuery {
 public:
  __device__ OneQuery(const Queries& queries, int kv_head, int column)
      : token_(queries.first),
        position_(queries.position(queries.first)),
        kv_head_(kv_head),
        column_(column) {}

  template <typename Scored>
  __device__ void process_split(const AttentionArguments<T>& a, SplitBuffers<T, kDim>& split,
                                Tile<T, kDim, kColumns>& tile, const WantedBlocks& wanted,
                                Scored scored) {
    score_block<1>(a, split, tile, wanted, scored);
    cp_async_wait_group();
    __syncthreads();
    const int lane = threadIdx.x % kWarp;
    softmax_ = {};
#pragma unroll
    for (auto& four : acc_)
      for (float& sum : four) sum = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if (!wanted(b)) continue;
      softmax_.row_sum =
          __fmaf_rn(softmax_.row_sum, split.correction[b][lane / 4], split.row_sum[b][0][lane]);
      softmax_.row_max = fmaxf(softmax_.row_max, split.row_max[b][lane / 4]);
      accumulate_pv(split, b);
    }
    if constexpr (kProbUnit<T> != 1)
#pragma unroll
      for (auto& four : acc_)
        for (float& sum : four) sum = __fmul_rn(sum, kProbUnit<T>);
    softmax_.row_sum = __fadd_rn(softmax_.row_sum, __shfl_xor_sync(~0u, softmax_.row_sum, 1));
    softmax_.row_sum = __fadd_rn(softmax_.row_sum, __shfl_xor_sync(~0u, softmax_.row_sum, 2));
  }

  // Writes the partial results of the heads, which lie `next` floats apart.
  __device__ void write_partial(const AttentionArguments<T>& a, float* first, int64_t next) const {
    const int lane = threadIdx.x % kWarp;
    if (column_ == 0 && lane % 4 == 0 && lane / 4 < a.group) {
      float* const to = first + lane / 4 * next;
      to[kDim] = softmax_.row_max, to[kDim + 1] = softmax_.row_sum;
    }
    each(a.group,
         [&](int which, int column, float sum) { first[(head() + which) * next + column] = sum; });
  }

  // Writes the output, where this split is the only one.
  __device__ void write_out(const AttentionArguments<T>& a) const {
    Softmax all[2];
    MergeScales merges[2];
    float inv_sums[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int owner = (head() + i) * 4;  // a lane that holds its softmax
      merges[i] = merge(all[i], {__shfl_sync(~0u, softmax_.row_max, owner),
                                 __shfl_sync(~0u, softmax_.row_sum, owner)});
      inv_sums[i] = inv_row_sum(all[i], position_);
    }
    T* const to = a.out + (int64_t{token_} * a.heads + kv_head_ * a.group) * kDim;
    each(a.group, [&](int which, int column, float sum) {
      to[(head() + which) * kDim + column] =
          narrow<T>(scaled(merges[which](0, sum), inv_sums[which]));
    });
  }

 private:
  // The first of this lane's heads, in the group.
  __device__ static int head() { return static_cast<int>(threadIdx.x) % 4 * 2; }

  // The sums over the keys of a block.
  __device__ void accumulate_pv(SplitBuffers<T, kDim>& split, int block) {
    const int lane = threadIdx.x % kWarp;
    const auto correction = *reinterpret_cast<const float2*>(&split.correction[block][head()]);
#pragma unroll
    for (auto& four : acc_)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        four[i] = __fmul_rn(four[i], i % 2 == 0 ? correction.x : correction.y);
#pragma unroll
    for (int step = 0; step < SplitBuffers<T, kDim>::kSteps; ++step) {
      uint32_t v[kTiles][4];
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        ldmatrix_x4<true>(
            v[n], split.blocks[block].v.at(step * 16 + lane / 16 * 8 + lane % 8,
                                           min(column_ + n * 16, kDim - 16) + lane / 8 % 2 * 8));
#pragma unroll
      for (int term = 0; term < kTerms<T>; ++term) {
        const uint2 probs = split.probs(0, block, step, term);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) mma_m16n8k16<T>(acc_[n], v[n], {probs.x, probs.y});
      }
    }
  }

  // use(which of the two heads, column, sum) for what this lane has.
  template <typename Use>
  __device__ void each(int group, Use use) const {
    const int row = static_cast<int>(threadIdx.x % kWarp) / 4;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = column_ + n * 16 + i / 2 * 8 + row;
        if (column < kDim && head() + i % 2 < group) use(i % 2, column, acc_[n][i]);
      }
  }

  static constexpr int kTiles = kColumns / 16;

  int token_, position_, kv_head_, column_;
  Softmax softmax_;  // of the head lane / 4
  float acc_[kTiles][4];
};

// Loads the keys and values of a warp's block of each split. With two warps a block, the second one
// loads the values.
template <typename T, int kDim, int kTeam>
struct SplitLoader {
  const AttentionArguments<T>& a;
  SplitBuffers<T, kDim>& split;
  const Queries& queries;
  KeyRange visible;
  int kv_head;
  int64_t offset = kUnwantedKey;  // of this lane's key

  __device__ KeyRange keys_of(int first) const {
    return {max(visible.begin, first), min(visible.end, first + kSplitKeys)};
  }
  // Looks the key up in the split that begins at position `first`.
  __device__ void find(int first) {
    offset = locate_key(a, queries, kv_head, first + mine() * kBlockKeys, keys_of(first));
  }
  __device__ void load_keys() const {
    if (warp() < kBlocks)
      KvTileLoader<T, kDim, kWarp, true>(offset).load(split.blocks[mine()].k, a.k);
  }
  __device__ void load_values() const {
    if (warp() >= kBlocks || kTeam == kBlocks)
      KvTileLoader<T, kDim, kWarp, true>(offset).load(split.blocks[mine()].v, a.v);
  }

 private:
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  __device__ static int mine() { return warp() % kBlocks; }
};

// Writes the output of a tile, where this split is the only one.
template <typename T, int kDim, int kColumns>
__device__ void write_only(const AttentionArguments<T>& a, const Tile<T, kDim, kColumns>& tile) {
  Softmax softmax[2];
  float4 all[kColumns / 8] = {};
  const auto acc = [&](int n) -> float4& { return all[n]; };
  tile.merge_into(softmax, acc);
  write_out(a, tile, softmax, acc);
}

}  // namespace lockstep
