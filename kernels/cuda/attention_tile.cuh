// A q tile on tensor cores: sixteen rows of queries and heads that one warp works on.
//
//   rows (16) x keys (32)      S = Q K^T   mma.m16n8k16, q in registers, K from shared memory
//   P = exp(S - row_max)       exact, as a sum of two or three 16-bit terms
//   rows (16) x columns        O = O * correction + P V
#pragma once

#include "kernels/cuda/attention_keys.cuh"

namespace lockstep {

constexpr int kTileRows = 16;  // rows of one product of the tensor cores: queries and heads

// Whether one of two numbers of a dtype is Inf or NaN.
template <typename T>
__device__ bool not_finite(uint32_t pair) {
  constexpr uint32_t kExponent = std::is_same_v<T, __half> ? 0x7c00 : 0x7f80;
  return (pair & kExponent) == kExponent || (pair >> 16 & kExponent) == kExponent;
}

// The keys that any of these rows sees; rows are a request's queries times the heads of a group.
template <typename T>
__device__ KeyRange visible_to_any(const AttentionArguments<T>& a, const Queries& queries,
                                   int first_row, int count) {
  const int rows = queries.rows(a);
  if (first_row >= rows) return {0, 0};
  const int last_row = min(first_row + count, rows) - 1;
  return {visible_keys(a, queries.position(queries.first + first_row / a.group)).begin,
          visible_keys(a, queries.position(queries.first + last_row / a.group)).end};
}

// Sixteen rows of queries and heads of one request and one K/V head, owned by one warp. A lane has
// elements of the rows lane / 4 and lane / 4 + 8: `half` 0 and 1. It sums kColumns columns of the
// output from `column` on: all of them, or some where warps work together.
template <typename T, int kDim, int kColumns = kDim>
struct Tile {
  using Scores = float[kBlockKeys / 8][4];  // of a block of keys; then their probabilities
  using Probs = uint32_t[kTerms<T>][4];     // the probabilities of sixteen keys, in terms

  int token[2];  // of this lane's rows; -1: there is no such row
  int head[2];
  int position[2];
  KeyRange visible[2];  // keys that they see
  KeyRange any;         // keys that any row of the tile sees
  uint32_t q[kDim / 16][4];
  Softmax softmax[2];  // row_sum is of this lane's keys only until the split ends
  int column = 0;
  float acc[kColumns / 8][4];  // of the split

  __device__ void begin(const AttentionArguments<T>& a, const Queries& queries, int kv_head,
                        int first_row);
  __device__ void begin_split();
  __device__ void clear_acc();
  __device__ void end_split();

  // The steps of processing a block of keys, whose first position is `first`.

  // Whether every row sees all keys of the block.
  __device__ bool all_visible(int first) const;
  // The scores; `all` is the result of all_visible.
  __device__ void score(const AttentionArguments<T>& a, const KvBlock<T, kDim>& block, int first,
                        bool all, Scores& p) const;
  // The last step of score: scales the products of q and k and masks the keys that a row does not
  // see.
  __device__ void scale_scores(const AttentionArguments<T>& a, int first, bool all,
                               Scores& p) const;
  // The largest score of a row.
  __device__ float block_row_max(const Scores& p, int half) const;
  // Turns scores into probabilities relative to row_max; returns the sum of this lane's.
  __device__ float exp_scores(Scores& p, int half, float row_max) const;
  // Rescales the sums of the blocks before: `row_max` is the maximum so far, and `row_sum` what
  // exp_scores returned.
  __device__ void rescale(int half, float row_max, float row_sum);
  // The two steps of rescale: row_sum, which gives the correction factor, and the output sums.
  __device__ float rescale_row_sum(int half, float row_max, float row_sum);
  __device__ void rescale_acc(int half, float correction);
  // Whether each row must be summed apart, of the keys that were loaded, where not every row sees
  // all of them.
  __device__ bool needs_row_masks(const KvBlock<T, kDim>& block, int first,
                                  const KeyRange& loaded) const;
  // Adds P V over the keys 16 step .. 16 step + 15 of the block.
  __device__ void accumulate_pv(const KvBlock<T, kDim>& block, int first, int step,
                                const Probs& probs, bool mask_rows);
  // The same sums, each row apart, with zeros in place of the values that it does not see:
  // `value(key, column)` points to the values of a key of the block.
  template <typename Value>
  __device__ void accumulate_pv_row_by_row(Value value, int first, int step, const Probs& probs);

  // Merges a split that has ended into those before it: `to_acc(n)` holds their acc[n].
  template <typename Acc>
  __device__ void merge_into(Softmax (&to)[2], Acc to_acc) const;
  // Whether a column from `column` on is one of the output.
  __device__ bool has_column(int n) const { return column + n < kDim; }

 private:
  __device__ void accumulate_pv_all_rows(const KvBlock<T, kDim>& block, int step,
                                         const Probs& probs);
};

template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::begin(const AttentionArguments<T>& a,
                                               const Queries& queries, int kv_head, int first_row) {
  const int lane = threadIdx.x % kWarp;
  const int rows = queries.rows(a);
  const T* from[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int mine = first_row + lane / 4 + 8 * half;
    const bool exists = mine < rows;
    token[half] = exists ? queries.first + mine / a.group : -1;
    head[half] = kv_head * a.group + mine % a.group;
    position[half] = exists ? queries.position(token[half]) : -1;
    visible[half] = exists ? visible_keys(a, position[half]) : KeyRange{0, 0};
    from[half] = a.q + (int64_t{token[half]} * a.heads + head[half]) * kDim + lane % 4 * 2;
  }
  any = visible_to_any(a, queries, first_row, kTileRows);
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      q[step][i] = token[i % 2] < 0
                       ? 0
                       : *reinterpret_cast<const uint32_t*>(from[i % 2] + step * 16 + i / 2 * 8);
}

template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::begin_split() {
  softmax[0] = softmax[1] = {};
  clear_acc();
}

template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::clear_acc() {
#pragma unroll
  for (auto& four : acc)
    for (float& sum : four) sum = 0;
}

// Adds up row_sum over the four lanes of a row, and takes the unit of the probabilities out of the
// sums.
template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::end_split() {
  if constexpr (kProbUnit<T> != 1)
#pragma unroll
    for (auto& four : acc)
      for (float& sum : four) sum = __fmul_rn(sum, kProbUnit<T>);
  for (auto& [row_max, row_sum] : softmax) {
    row_sum = __fadd_rn(row_sum, __shfl_xor_sync(~0u, row_sum, 1));
    row_sum = __fadd_rn(row_sum, __shfl_xor_sync(~0u, row_sum, 2));
  }
}

template <typename T, int kDim, int kColumns>
__device__ bool Tile<T, kDim, kColumns>::all_visible(int first) const {
  const auto sees = [&](int half) {
    return token[half] < 0 ||
           (visible[half].begin <= first && visible[half].end >= first + kBlockKeys);
  };
  return __all_sync(~0u, sees(0) && sees(1));
}

template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::score(const AttentionArguments<T>& a,
                                               const KvBlock<T, kDim>& block, int first, bool all,
                                               Scores& p) const {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (auto& four : p)
    for (float& score : four) score = 0;
      // Keys in the inner loop: the products of one key wait for each other.
#pragma unroll
  for (int step = 0; step < kDim / 16; step += 2) {
    // 32 elements each; the last 16 are loaded twice where there are no more.
    uint32_t k[kBlockKeys / 8][4];
    const int column = min(step * 16 + lane / 8 * 8, kDim - 8);
#pragma unroll
    for (int j = 0; j < kBlockKeys / 8; ++j)
      ldmatrix_x4<false>(k[j], block.k.at(j * 8 + lane % 8, column));
#pragma unroll
    for (int j = 0; j < kBlockKeys / 8; ++j) mma_m16n8k16<T>(p[j], q[step], {k[j][0], k[j][1]});
    if (step + 1 == kDim / 16) continue;
#pragma unroll
    for (int j = 0; j < kBlockKeys / 8; ++j) mma_m16n8k16<T>(p[j], q[step + 1], {k[j][2], k[j][3]});
  }
  scale_scores(a, first, all, p);
}

template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::scale_scores(const AttentionArguments<T>& a, int first,
                                                      bool all, Scores& p) const {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (auto& four : p)
#pragma unroll
    for (float& score : four) score = __fmul_rn(score, a.scale);
  if (all) return;
#pragma unroll
  for (int j = 0; j < kBlockKeys / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first + j * 8 + lane % 4 * 2 + i % 2;
      const KeyRange& range = visible[i / 2];
      if (key < range.begin || key >= range.end) p[j][i] = kNegInf;
    }
}

template <typename T, int kDim, int kColumns>
__device__ float Tile<T, kDim, kColumns>::block_row_max(const Scores& p, int half) const {
  float row_max = kNegInf;
#pragma unroll
  for (const auto& four : p) row_max = fmaxf(row_max, fmaxf(four[2 * half], four[2 * half + 1]));
  row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, 1));
  return fmaxf(row_max, __shfl_xor_sync(~0u, row_max, 2));
}

template <typename T, int kDim, int kColumns>
__device__ float Tile<T, kDim, kColumns>::exp_scores(Scores& p, int half, float row_max) const {
  const float base = finite_max(row_max);
  float row_sum = 0;
#pragma unroll
  for (auto& four : p)
#pragma unroll
    for (int i = 2 * half; i < 2 * half + 2; ++i) {
      four[i] = exp_nonpositive(four[i] - base);
      row_sum = __fadd_rn(row_sum, four[i]);
    }
  return row_sum;
}

template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::rescale(int half, float row_max, float row_sum) {
  rescale_acc(half, rescale_row_sum(half, row_max, row_sum));
}

template <typename T, int kDim, int kColumns>
__device__ float Tile<T, kDim, kColumns>::rescale_row_sum(int half, float row_max, float row_sum) {
  const float correction = expf(softmax[half].row_max - finite_max(row_max));
  softmax[half] = {row_max, __fmaf_rn(softmax[half].row_sum, correction, row_sum)};
  return correction;
}

template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::rescale_acc(int half, float correction) {
#pragma unroll
  for (auto& four : acc)
#pragma unroll
    for (int i = 2 * half; i < 2 * half + 2; ++i) four[i] = __fmul_rn(four[i], correction);
}

template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::accumulate_pv(const KvBlock<T, kDim>& block, int first,
                                                       int step, const Probs& probs,
                                                       bool mask_rows) {
  if (mask_rows)
    accumulate_pv_row_by_row([&](int key, int column) { return block.v.at(key, column); }, first,
                             step, probs);
  else
    accumulate_pv_all_rows(block, step, probs);
}

template <typename T, int kDim, int kColumns>
template <typename Acc>
__device__ void Tile<T, kDim, kColumns>::merge_into(Softmax (&to)[2], Acc to_acc) const {
  const MergeScales low = merge(to[0], softmax[0]), high = merge(to[1], softmax[1]);
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    const float4 old = to_acc(n);
    to_acc(n) = {low(old.x, acc[n][0]), low(old.y, acc[n][1]), high(old.z, acc[n][2]),
                 high(old.w, acc[n][3])};
  }
}

// The product of a probability of 0 and a value that is not finite is NaN, which is wrong for a row
// that does not see the value while another row of the tile does.
template <typename T, int kDim, int kColumns>
__device__ bool Tile<T, kDim, kColumns>::needs_row_masks(const KvBlock<T, kDim>& block, int first,
                                                         const KeyRange& loaded) const {
  const auto all_of = [&](const KeyRange& range) {
    return range.begin <= max(first, loaded.begin) &&
           range.end >= min(first + kBlockKeys, loaded.end);
  };
  if (__all_sync(~0u, (token[0] < 0 || all_of(visible[0])) && (token[1] < 0 || all_of(visible[1]))))
    return false;
  const int lane = threadIdx.x % kWarp;
  bool found = false;
  for (int i = 0; i < kDim / 2; ++i)
    found |= not_finite<T>(reinterpret_cast<const uint32_t*>(block.v.at(lane, i / 4 * 8))[i % 4]);
  return __any_sync(~0u, found);
}

template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::accumulate_pv_all_rows(const KvBlock<T, kDim>& block,
                                                                int step, const Probs& probs) {
  const int lane = threadIdx.x % kWarp;
  // Several columns at a time, because the terms of one sum wait for each other.
  constexpr int kTogether = kColumns % 64 == 0 ? 4 : kColumns % 32 == 0 ? 2 : 1;
#pragma unroll
  for (int n = 0; n < kColumns / 16; n += kTogether) {
    if (!has_column(n * 16)) break;
    uint32_t v[kTogether][4];
#pragma unroll
    for (int c = 0; c < kTogether; ++c)
      ldmatrix_x4<true>(v[c], block.v.at(step * 16 + lane % 16,
                                         min(column + (n + c) * 16, kDim - 16) + lane / 16 * 8));
#pragma unroll
    for (int term = 0; term < kTerms<T>; ++term)
#pragma unroll
      for (int c = 0; c < kTogether; ++c) {
        mma_m16n8k16<T>(acc[(n + c) * 2], probs[term], {v[c][0], v[c][1]});
        mma_m16n8k16<T>(acc[(n + c) * 2 + 1], probs[term], {v[c][2], v[c][3]});
      }
  }
}

template <typename T, int kDim, int kColumns>
template <typename Value>
__device__ void Tile<T, kDim, kColumns>::accumulate_pv_row_by_row(Value value, int first, int step,
                                                                  const Probs& probs) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll 1
  for (int r = 0; r < kTileRows; ++r) {
    const int owner = r % 8 * 4;  // a lane that knows what the row sees
    const KeyRange range = {__shfl_sync(~0u, r < 8 ? visible[0].begin : visible[1].begin, owner),
                            __shfl_sync(~0u, r < 8 ? visible[0].end : visible[1].end, owner)};
    const auto masked = [&](uint32_t pair, int key) {
      const uint32_t low = key >= range.begin && key < range.end ? 0xffffu : 0u;
      const uint32_t high = key + 1 >= range.begin && key + 1 < range.end ? 0xffff0000u : 0u;
      return pair & (low | high);
    };
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      if (!has_column(n * 8)) break;
      float sum[4] = {acc[n][0], acc[n][1], acc[n][2], acc[n][3]};
      uint32_t v[4];  // the second two are not used
      ldmatrix_x4<true>(v, value(step * 16 + lane % 16, column + n * 8));
      const int key = first + step * 16 + lane % 4 * 2;
      const uint32_t b[2] = {masked(v[0], key), masked(v[1], key + 8)};
#pragma unroll
      for (int term = 0; term < kTerms<T>; ++term) mma_m16n8k16<T>(sum, probs[term], b);
      // The index is not r / 8 * 2: one that is only known at run time would move acc out of
      // registers.
      const bool mine = lane / 4 == r % 8;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (mine && i / 2 == r / 8) acc[n][i] = sum[i];
    }
  }
}

// Splits the probabilities of the keys 16 step .. 16 step + 15 into terms, for kHalves of the rows:
// with 1, the upper eight rows are empty.
template <typename T, int kHalves>
__device__ void split_scores(const float (&p)[kBlockKeys / 8][4], int step,
                             uint32_t (&probs)[kTerms<T>][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t terms[kTerms<T>] = {};
    if (i % 2 < kHalves) {
      const float* pair = &p[step * 2 + i / 2][i % 2 * 2];
      split<T>(pair[0] / kProbUnit<T>, pair[1] / kProbUnit<T>, terms);
    }
#pragma unroll
    for (int term = 0; term < kTerms<T>; ++term) probs[term][i] = terms[term];
  }
}

// Writes the tile's columns of the output from the merged splits of its rows (Tile::merge_into).
template <typename T, int kDim, int kColumns, typename Acc>
__device__ void write_out(const AttentionArguments<T>& a, const Tile<T, kDim, kColumns>& tile,
                          const Softmax (&softmax)[2], Acc acc) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (tile.token[half] < 0) continue;
    const float inv_sum = inv_row_sum(softmax[half], tile.position[half]);
    T* to = a.out + (int64_t{tile.token[half]} * a.heads + tile.head[half]) * kDim + tile.column;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      if (!tile.has_column(n * 8)) continue;
      const float4 all = acc(n);
      const float2 mine = half == 0 ? float2{all.x, all.y} : float2{all.z, all.w};
      *reinterpret_cast<uint32_t*>(to + n * 8 + lane % 4 * 2) =
          pack_pair<T>(scaled(mine.x, inv_sum), scaled(mine.y, inv_sum));
    }
  }
}

// The most q tiles of `rows` rows that a pass can have, however its tokens are shared by requests.
template <typename T>
int64_t max_q_tiles(const AttentionArguments<T>& a, int64_t rows) {
  return std::min(a.tokens * a.group / rows + a.requests, a.tokens * (a.group / rows + 1));
}

// Calls body.template operator()<kDim>() for a head_dim that suits the tensor cores. Returns false,
// with nothing done, where head_dim, dtype or addresses do not suit them.
template <typename T, typename Body>
bool dispatch_tile(const AttentionArguments<T>& a, Body&& body) {
  if constexpr (std::is_same_v<T, float>) {
    return false;
  } else {
    if (!aligned_16(0, a.out, a.q, a.k, a.v)) return false;
    if (a.head_dim == 16)
      body.template operator()<16>();
    else if (a.head_dim == 32)
      body.template operator()<32>();
    else if (a.head_dim == 64)
      body.template operator()<64>();
    else if (a.head_dim == 80)
      body.template operator()<80>();
    else if (a.head_dim == 128)
      body.template operator()<128>();
    else
      return false;
    return true;
  }
}

}  // namespace lockstep
