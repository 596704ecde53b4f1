// A block of threads at work on a chunk of keys: what the kernels share that take the chunks of a
// row apart.
#pragma once

#include "kernels/cuda/attention_tile.cuh"

namespace lockstep {

constexpr int kBlocks = kChunkKeys / kBlockKeys;  // of a chunk; a warp each

// The columns of the output that each of so many warps sums.
template <int kDim, int kTeam>
constexpr int kShare = (kDim / 16 + kTeam - 1) / kTeam * 16;

constexpr int kLowerRows = kTileRows / 2;

// What the warps tell each other. The weights of the lower eight rows, which are all where a
// request decodes, have room of their own, so that the next keys can come while they are used;
// those of the upper ones take the place of the keys.
template <typename T, int kDim>
struct Chunk {
  static constexpr int kSteps = kBlockKeys / 16;
  using Weights = uint2[kWarp][kSteps * kParts<T>];  // of a block: each lane its own

  Block<T, kDim> blocks[kBlocks];
  alignas(16) Weights lower[kBlocks];
  float most[kBlocks][kTileRows];
  alignas(8) float shrink[kBlocks][kLowerRows];  // what a block changes in the sums before it
  float total[kBlocks][2][kWarp];

  // This lane's share of a block's weights.
  __device__ uint2& weights(int half, int block, int step, int part) {
    static_assert(sizeof(Weights) <= sizeof(blocks[0].k));
    auto& all = half == 0 ? lower[block] : reinterpret_cast<Weights&>(blocks[block].k);
    return all[threadIdx.x % kWarp][step * kParts<T> + part];
  }
};

// What the chunk gives the rows of a tile: see AttentionArguments::part, to which part_of(half)
// points for this lane's.
template <typename T, int kDim, int kColumns, typename PartOf>
__device__ void write_part(const Tile<T, kDim, kColumns>& tile, PartOf part_of) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (tile.token[half] < 0) continue;
    float* const to = part_of(half);
    if (tile.column == 0 && lane % 4 == 0)
      to[kDim] = tile.softmax[half].most, to[kDim + 1] = tile.softmax[half].total;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
      if (tile.has_column(n * 8))
        *reinterpret_cast<float2*>(to + tile.column + n * 8 + lane % 4 * 2) = {
            tile.sums[n][2 * half], tile.sums[n][2 * half + 1]};
  }
}

// Which blocks of a chunk have keys that are wanted.
struct Taken {
  int first;
  KeyRange keys;
  __device__ bool operator()(int block) const {
    const int at = first + block * kBlockKeys;
    return at < keys.end && at + kBlockKeys > keys.begin;
  }
};

// The scores of the warp's own block, turned into weights for all warps, of kHalves of the rows:
// relative to the largest score up to and with this block. Calls scored() when the keys have been
// read.
template <int kHalves, typename T, int kDim, int kColumns, typename Scored>
__device__ void score_block(const AttentionArguments<T>& a, Chunk<T, kDim>& chunk,
                            Tile<T, kDim, kColumns>& tile, const Taken& taken, Scored scored) {
  const int lane = static_cast<int>(threadIdx.x % kWarp),
            warp = static_cast<int>(threadIdx.x / kWarp);
  float p[kBlockKeys / 8][4];
  if (taken(warp)) {
    const int at = taken.first + warp * kBlockKeys;
    tile.score(a, chunk.blocks[warp], at, tile.sees_all(at), p);
    __syncwarp();
  }
  scored();
  if (taken(warp)) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const float most = tile.most_of(p, half);
      if (lane % 4 == 0) chunk.most[warp][lane / 4 + 8 * half] = most;
    }
  }
  __syncthreads();
  if (!taken(warp)) return;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    float before = kNothing;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
      if (b < warp && taken(b)) before = fmaxf(before, chunk.most[b][lane / 4 + 8 * half]);
    const float most = fmaxf(before, chunk.most[warp][lane / 4 + 8 * half]);
    chunk.total[warp][half][lane] = tile.soften(p, half, most);
    if (kHalves == 1 && lane % 4 == 0) chunk.shrink[warp][lane / 4] = expf(before - base_of(most));
  }
#pragma unroll
  for (int step = 0; step < Chunk<T, kDim>::kSteps; ++step) {
    uint32_t weights[kParts<T>][4];
    split_scores<T, kHalves>(p, step, weights);
#pragma unroll
    for (int part = 0; part < kParts<T>; ++part)
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
        chunk.weights(half, warp, step, part) = {weights[part][half], weights[part][half + 2]};
  }
}

// Softmax and sums of the chunk in a tile: first a warp scores each block, then each warp sums its
// columns over all of them, in their order. Both give the bits that one warp alone would.
template <typename T, int kDim, int kColumns, typename Scored>
__device__ void take_chunk(const AttentionArguments<T>& a, Chunk<T, kDim>& chunk,
                           Tile<T, kDim, kColumns>& tile, const Taken& taken, Scored scored) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  score_block<2>(a, chunk, tile, taken, scored);
  wait_for_older();
  __syncthreads();
  tile.begin_chunk();
#pragma unroll 1
  for (int b = 0; b < kBlocks; ++b) {
    if (!taken(b)) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      tile.grow(half, fmaxf(tile.softmax[half].most, chunk.most[b][lane / 4 + 8 * half]),
                chunk.total[b][half][lane]);
    if (tile.column >= kDim) continue;
    const int at = taken.first + b * kBlockKeys;
    const bool part_rows =
        !tile.sees_all(at) && tile.must_part_rows(chunk.blocks[b], at, taken.keys);
#pragma unroll
    for (int step = 0; step < Chunk<T, kDim>::kSteps; ++step) {
      uint32_t weights[kParts<T>][4];
#pragma unroll
      for (int part = 0; part < kParts<T>; ++part)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint2 two = chunk.weights(half, b, step, part);
          weights[part][half] = two.x, weights[part][half + 2] = two.y;
        }
      tile.weigh(chunk.blocks[b], at, step, weights, part_rows);
    }
  }
  tile.end_chunk();
}

// The same of a tile that has the heads of one query only, at most kLowerRows: as most tiles are
// when requests decode. Values are multiplied from the left, so that no product is made for rows
// that there are not. A lane has columns lane / 4 and lane / 4 + 8 of sixteen, and of each the
// heads 2 (lane % 4) and the next. Every number is the one that a Tile would have.
template <typename T, int kDim, int kColumns>
class OneQuery {
 public:
  __device__ OneQuery(const Queries& queries, int kv_head, int column)
      : token_(queries.first),
        position_(queries.position(queries.first)),
        kv_head_(kv_head),
        column_(column) {}

  template <typename Scored>
  __device__ void take_chunk(const AttentionArguments<T>& a, Chunk<T, kDim>& chunk,
                             Tile<T, kDim, kColumns>& tile, const Taken& taken, Scored scored) {
    score_block<1>(a, chunk, tile, taken, scored);
    wait_for_older();
    __syncthreads();
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    softmax_ = {};
#pragma unroll
    for (auto& four : sums_)
      for (float& sum : four) sum = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if (!taken(b)) continue;
      softmax_.total =
          __fmaf_rn(softmax_.total, chunk.shrink[b][lane / 4], chunk.total[b][0][lane]);
      softmax_.most = fmaxf(softmax_.most, chunk.most[b][lane / 4]);
      weigh(chunk, b);
    }
    if constexpr (kWeightUnit<T> != 1)
#pragma unroll
      for (auto& four : sums_)
        for (float& sum : four) sum = __fmul_rn(sum, kWeightUnit<T>);
    softmax_.total = __fadd_rn(softmax_.total, __shfl_xor_sync(~0u, softmax_.total, 1));
    softmax_.total = __fadd_rn(softmax_.total, __shfl_xor_sync(~0u, softmax_.total, 2));
  }

  // What the chunk gives the heads, `next` floats from one to the other.
  __device__ void write_part(const AttentionArguments<T>& a, float* first, int64_t next) const {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    if (column_ == 0 && lane % 4 == 0 && lane / 4 < a.group) {
      float* const to = first + lane / 4 * next;
      to[kDim] = softmax_.most, to[kDim + 1] = softmax_.total;
    }
    each(a.group,
         [&](int which, int column, float sum) { first[(head() + which) * next + column] = sum; });
  }

  // The output, where this chunk is the only one.
  __device__ void write_out(const AttentionArguments<T>& a) const {
    Softmax all[2];
    Join joins[2];
    float units[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int owner = (head() + i) * 4;  // a lane that knows
      joins[i] = join(all[i], {__shfl_sync(~0u, softmax_.most, owner),
                               __shfl_sync(~0u, softmax_.total, owner)});
      units[i] = unit_of(all[i], position_);
    }
    T* const to = a.out + (int64_t{token_} * a.heads + kv_head_ * a.group) * kDim;
    each(a.group, [&](int which, int column, float sum) {
      to[(head() + which) * kDim + column] = narrow<T>(scaled(joins[which](0, sum), units[which]));
    });
  }

 private:
  // The first of this lane's heads, in the group.
  __device__ static int head() { return static_cast<int>(threadIdx.x) % 4 * 2; }

  // The sums over the keys of a block.
  __device__ void weigh(Chunk<T, kDim>& chunk, int block) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const auto shrink = *reinterpret_cast<const float2*>(&chunk.shrink[block][head()]);
#pragma unroll
    for (auto& four : sums_)
#pragma unroll
      for (int i = 0; i < 4; ++i) four[i] = __fmul_rn(four[i], i % 2 == 0 ? shrink.x : shrink.y);
#pragma unroll
    for (int step = 0; step < Chunk<T, kDim>::kSteps; ++step) {
      uint32_t v[kTiles][4];
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        load_matrices<true>(
            v[n], chunk.blocks[block].v.at(step * 16 + lane / 16 * 8 + lane % 8,
                                           min(column_ + n * 16, kDim - 16) + lane / 8 % 2 * 8));
#pragma unroll
      for (int part = 0; part < kParts<T>; ++part) {
        const uint2 weights = chunk.weights(0, block, step, part);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) multiply_add<T>(sums_[n], v[n], {weights.x, weights.y});
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
        if (column < kDim && head() + i % 2 < group) use(i % 2, column, sums_[n][i]);
      }
  }

  static constexpr int kTiles = kColumns / 16;

  int token_, position_, kv_head_, column_;
  Softmax softmax_;  // of the head lane / 4
  float sums_[kTiles][4];
};

// Where a warp finds the keys and values of its block of each chunk, and how it brings them. With
// two warps for a block the second brings the values.
template <typename T, int kDim, int kTeam>
struct Supply {
  const AttentionArguments<T>& a;
  Chunk<T, kDim>& chunk;
  const Queries& queries;
  KeyRange seen;
  int kv_head;
  int64_t place = kZeros;  // of this lane's key

  __device__ KeyRange keys_of(int first) const {
    return {max(seen.begin, first), min(seen.end, first + kChunkKeys)};
  }
  // In the chunk that begins at a position.
  __device__ void find(int first) {
    place = look_up(a, queries, kv_head, first + mine() * kBlockKeys, keys_of(first));
  }
  __device__ void bring_keys() const {
    if (warp() < kBlocks) Pieces<T, kDim, kWarp, true>(place).bring(chunk.blocks[mine()].k, a.k);
  }
  __device__ void bring_values() const {
    if (warp() >= kBlocks || kTeam == kBlocks)
      Pieces<T, kDim, kWarp, true>(place).bring(chunk.blocks[mine()].v, a.v);
  }

 private:
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  __device__ static int mine() { return warp() % kBlocks; }
};

// The output of a tile, where this chunk is the only one.
template <typename T, int kDim, int kColumns>
__device__ void write_only(const AttentionArguments<T>& a, const Tile<T, kDim, kColumns>& tile) {
  Softmax softmax[2];
  float4 all[kColumns / 8] = {};
  const auto sums = [&](int n) -> float4& { return all[n]; };
  tile.join_to(softmax, sums);
  write_out(a, tile, softmax, sums);
}

}  // namespace lockstep
