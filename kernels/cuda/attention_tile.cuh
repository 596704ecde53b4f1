// What the kernels of paged_attention on tensor cores share: sixteen rows of
// queries and heads that one warp works on.
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

// Keys that any of these rows sees: rows are a request's queries times the
// heads of a group.
template <typename T>
__device__ KeyRange seen_by(const AttentionArguments<T>& a, const Queries& queries, int first_row,
                            int count) {
  const int rows = queries.rows(a);
  if (first_row >= rows) return {0, 0};
  const int last_row = min(first_row + count, rows) - 1;
  return {seen_from(a, queries.position(queries.first + first_row / a.group)).begin,
          seen_from(a, queries.position(queries.first + last_row / a.group)).end};
}

// Sixteen rows of queries and heads of one request and one K/V head, worked on
// by one warp. A lane has elements of the rows lane / 4 and lane / 4 + 8:
// `half` 0 and 1. Of the output it sums kColumns columns from `column` on: all
// of them, or a share where warps work together.
template <typename T, int kDim, int kColumns = kDim>
struct Tile {
  using Scores = float[kBlockKeys / 8][4];  // of a block of keys; then their probabilities
  using Weights = uint32_t[kParts<T>][4];   // the probabilities of sixteen keys, in parts

  int token[2];  // of this lane's rows; -1: there is no such row
  int head[2];
  int position[2];
  KeyRange seen[2];  // keys that they see
  KeyRange any;      // keys that any row of the tile sees
  uint32_t q[kDim / 16][4];
  Softmax softmax[2];  // totals of this lane's keys only, until the chunk ends
  int column = 0;
  float sums[kColumns / 8][4];  // of the chunk

  __device__ void begin(const AttentionArguments<T>& a, const Queries& queries, int kv_head,
                        int first_row);
  __device__ void begin_chunk();
  __device__ void clear_sums();
  __device__ void end_chunk();

  // The steps of taking the keys from position `first` on, which are a block:
  // whether every row sees all of them,
  __device__ bool sees_all(int first) const;
  // their scores, where `all` says that,
  __device__ void score(const AttentionArguments<T>& a, const Block<T, kDim>& block, int first,
                        bool all, Scores& p) const;
  // of which this is the last step, from products of q and k on,
  __device__ void scale_scores(const AttentionArguments<T>& a, int first, bool all,
                               Scores& p) const;
  // the largest one of a row,
  __device__ float most_of(const Scores& p, int half) const;
  // their probabilities relative to a maximum, of which it returns the sum of
  // this lane's,
  __device__ float soften(Scores& p, int half, float most) const;
  // what they change in what was summed before: `most` is the maximum so far,
  // and `total` what soften gave,
  __device__ void grow(int half, float most, float total);
  // which is two steps: the totals, and the sums with the factor that this gave,
  __device__ float grow_total(int half, float most, float total);
  __device__ void grow_sums(int half, float shrink);
  // whether each row must be summed for itself, of those keys that were
  // brought, where not every row sees all,
  __device__ bool must_part_rows(const Block<T, kDim>& block, int first,
                                 const KeyRange& brought) const;
  // and the sums over keys 16 step .. 16 step + 15 of the block.
  __device__ void weigh(const Block<T, kDim>& block, int first, int step, const Weights& weights,
                        bool part_rows);
  // The same sums, each row for itself, with zeros in place of the values that it does not see:
  // `value(key, column)` is where the values of a key of the block lie.
  template <typename Value>
  __device__ void weigh_row_by_row(Value value, int first, int step, const Weights& weights);

  // Adds a chunk that has ended to those before it: `to_sums(n)` are their sums[n].
  template <typename Sums>
  __device__ void join_to(Softmax (&to)[2], Sums to_sums) const;
  // Whether a column of the share is one of the output.
  __device__ bool has_column(int n) const { return column + n < kDim; }

 private:
  __device__ void weigh_rows(const Block<T, kDim>& block, int step, const Weights& weights);
};

template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::begin(const AttentionArguments<T>& a,
                                               const Queries& queries, int kv_head, int first_row) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int rows = queries.rows(a);
  const T* from[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int mine = first_row + lane / 4 + 8 * half;
    const bool exists = mine < rows;
    token[half] = exists ? queries.first + mine / a.group : -1;
    head[half] = kv_head * a.group + mine % a.group;
    position[half] = exists ? queries.position(token[half]) : -1;
    seen[half] = exists ? seen_from(a, position[half]) : KeyRange{0, 0};
    from[half] = a.q + (int64_t{token[half]} * a.heads + head[half]) * kDim + lane % 4 * 2;
  }
  any = seen_by(a, queries, first_row, kTileRows);
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      q[step][i] = token[i % 2] < 0
                       ? 0
                       : *reinterpret_cast<const uint32_t*>(from[i % 2] + step * 16 + i / 2 * 8);
}

template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::begin_chunk() {
  softmax[0] = softmax[1] = {};
  clear_sums();
}

template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::clear_sums() {
#pragma unroll
  for (auto& four : sums)
    for (float& sum : four) sum = 0;
}

// Adds up what the four lanes of a row have of its total, and takes the unit of
// the weights out of the sums.
template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::end_chunk() {
  if constexpr (kWeightUnit<T> != 1)
#pragma unroll
    for (auto& four : sums)
      for (float& sum : four) sum = __fmul_rn(sum, kWeightUnit<T>);
  for (auto& [most, total] : softmax) {
    total = __fadd_rn(total, __shfl_xor_sync(~0u, total, 1));
    total = __fadd_rn(total, __shfl_xor_sync(~0u, total, 2));
  }
}

template <typename T, int kDim, int kColumns>
__device__ bool Tile<T, kDim, kColumns>::sees_all(int first) const {
  const auto sees = [&](int half) {
    return token[half] < 0 || (seen[half].begin <= first && seen[half].end >= first + kBlockKeys);
  };
  return __all_sync(~0u, sees(0) && sees(1));
}

template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::score(const AttentionArguments<T>& a,
                                               const Block<T, kDim>& block, int first, bool all,
                                               Scores& p) const {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (auto& four : p)
    for (float& score : four) score = 0;
      // Keys in the inner loop: the products of one key wait for each other.
#pragma unroll
  for (int step = 0; step < kDim / 16; step += 2) {
    uint32_t k[kBlockKeys / 8][4];  // 32 elements each; the last 16 twice where
                                    // there are no more
    const int column = min(step * 16 + lane / 8 * 8, kDim - 8);
#pragma unroll
    for (int j = 0; j < kBlockKeys / 8; ++j)
      load_matrices<false>(k[j], block.k.at(j * 8 + lane % 8, column));
#pragma unroll
    for (int j = 0; j < kBlockKeys / 8; ++j) multiply_add<T>(p[j], q[step], {k[j][0], k[j][1]});
    if (step + 1 == kDim / 16) continue;
#pragma unroll
    for (int j = 0; j < kBlockKeys / 8; ++j) multiply_add<T>(p[j], q[step + 1], {k[j][2], k[j][3]});
  }
  scale_scores(a, first, all, p);
}

template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::scale_scores(const AttentionArguments<T>& a, int first,
                                                      bool all, Scores& p) const {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
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
      const KeyRange& range = seen[i / 2];
      if (key < range.begin || key >= range.end) p[j][i] = kNothing;
    }
}

template <typename T, int kDim, int kColumns>
__device__ float Tile<T, kDim, kColumns>::most_of(const Scores& p, int half) const {
  float most = kNothing;
#pragma unroll
  for (const auto& four : p) most = fmaxf(most, fmaxf(four[2 * half], four[2 * half + 1]));
  most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
  return fmaxf(most, __shfl_xor_sync(~0u, most, 2));
}

template <typename T, int kDim, int kColumns>
__device__ float Tile<T, kDim, kColumns>::soften(Scores& p, int half, float most) const {
  const float base = base_of(most);
  float total = 0;
#pragma unroll
  for (auto& four : p)
#pragma unroll
    for (int i = 2 * half; i < 2 * half + 2; ++i) {
      four[i] = exp_of(four[i] - base);
      total = __fadd_rn(total, four[i]);
    }
  return total;
}

template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::grow(int half, float most, float total) {
  grow_sums(half, grow_total(half, most, total));
}

template <typename T, int kDim, int kColumns>
__device__ float Tile<T, kDim, kColumns>::grow_total(int half, float most, float total) {
  const float shrink = expf(softmax[half].most - base_of(most));
  softmax[half] = {most, __fmaf_rn(softmax[half].total, shrink, total)};
  return shrink;
}

template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::grow_sums(int half, float shrink) {
#pragma unroll
  for (auto& four : sums)
#pragma unroll
    for (int i = 2 * half; i < 2 * half + 2; ++i) four[i] = __fmul_rn(four[i], shrink);
}

template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::weigh(const Block<T, kDim>& block, int first, int step,
                                               const Weights& weights, bool part_rows) {
  if (part_rows)
    weigh_row_by_row([&](int key, int column) { return block.v.at(key, column); }, first, step,
                     weights);
  else
    weigh_rows(block, step, weights);
}

template <typename T, int kDim, int kColumns>
template <typename Sums>
__device__ void Tile<T, kDim, kColumns>::join_to(Softmax (&to)[2], Sums to_sums) const {
  const Join low = join(to[0], softmax[0]), high = join(to[1], softmax[1]);
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    const float4 old = to_sums(n);
    to_sums(n) = {low(old.x, sums[n][0]), low(old.y, sums[n][1]), high(old.z, sums[n][2]),
                  high(old.w, sums[n][3])};
  }
}

// A product makes NaN of a probability of 0 and a value that is not finite.
// That is wrong for a row that does not see the value, while another row of the
// tile does.
template <typename T, int kDim, int kColumns>
__device__ bool Tile<T, kDim, kColumns>::must_part_rows(const Block<T, kDim>& block, int first,
                                                        const KeyRange& brought) const {
  const auto all_of = [&](const KeyRange& range) {
    return range.begin <= max(first, brought.begin) &&
           range.end >= min(first + kBlockKeys, brought.end);
  };
  if (__all_sync(~0u, (token[0] < 0 || all_of(seen[0])) && (token[1] < 0 || all_of(seen[1]))))
    return false;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  bool found = false;
  for (int i = 0; i < kDim / 2; ++i)
    found |= not_finite<T>(reinterpret_cast<const uint32_t*>(block.v.at(lane, i / 4 * 8))[i % 4]);
  return __any_sync(~0u, found);
}

template <typename T, int kDim, int kColumns>
__device__ void Tile<T, kDim, kColumns>::weigh_rows(const Block<T, kDim>& block, int step,
                                                    const Weights& weights) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  // Several columns at a time: the parts of one sum wait for each other.
  constexpr int kTogether = kColumns % 64 == 0 ? 4 : kColumns % 32 == 0 ? 2 : 1;
#pragma unroll
  for (int n = 0; n < kColumns / 16; n += kTogether) {
    if (!has_column(n * 16)) break;
    uint32_t v[kTogether][4];
#pragma unroll
    for (int c = 0; c < kTogether; ++c)
      load_matrices<true>(v[c], block.v.at(step * 16 + lane % 16,
                                           min(column + (n + c) * 16, kDim - 16) + lane / 16 * 8));
#pragma unroll
    for (int part = 0; part < kParts<T>; ++part)
#pragma unroll
      for (int c = 0; c < kTogether; ++c) {
        multiply_add<T>(sums[(n + c) * 2], weights[part], {v[c][0], v[c][1]});
        multiply_add<T>(sums[(n + c) * 2 + 1], weights[part], {v[c][2], v[c][3]});
      }
  }
}

template <typename T, int kDim, int kColumns>
template <typename Value>
__device__ void Tile<T, kDim, kColumns>::weigh_row_by_row(Value value, int first, int step,
                                                          const Weights& weights) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll 1
  for (int r = 0; r < kTileRows; ++r) {
    const int owner = r % 8 * 4;  // a lane that knows what the row sees
    const KeyRange range = {__shfl_sync(~0u, r < 8 ? seen[0].begin : seen[1].begin, owner),
                            __shfl_sync(~0u, r < 8 ? seen[0].end : seen[1].end, owner)};
    const auto masked = [&](uint32_t pair, int key) {
      const uint32_t low = key >= range.begin && key < range.end ? 0xffffu : 0u;
      const uint32_t high = key + 1 >= range.begin && key + 1 < range.end ? 0xffff0000u : 0u;
      return pair & (low | high);
    };
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      if (!has_column(n * 8)) break;
      float sum[4] = {sums[n][0], sums[n][1], sums[n][2], sums[n][3]};
      uint32_t v[4];  // the second two are not used
      load_matrices<true>(v, value(step * 16 + lane % 16, column + n * 8));
      const int key = first + step * 16 + lane % 4 * 2;
      const uint32_t b[2] = {masked(v[0], key), masked(v[1], key + 8)};
#pragma unroll
      for (int part = 0; part < kParts<T>; ++part) multiply_add<T>(sum, weights[part], b);
      // Not sums[n][r / 8 * 2]: an index that is only known at run time costs
      // the registers.
      const bool mine = lane / 4 == r % 8;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (mine && i / 2 == r / 8) sums[n][i] = sum[i];
    }
  }
}

// The probabilities of keys 16 step .. 16 step + 15 in parts, of kHalves of the
// rows: with 1, the upper eight rows are none.
template <typename T, int kHalves>
__device__ void split_scores(const float (&p)[kBlockKeys / 8][4], int step,
                             uint32_t (&weights)[kParts<T>][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t parts[kParts<T>] = {};
    if (i % 2 < kHalves) {
      const float* pair = &p[step * 2 + i / 2][i % 2 * 2];
      split<T>(pair[0] / kWeightUnit<T>, pair[1] / kWeightUnit<T>, parts);
    }
#pragma unroll
    for (int part = 0; part < kParts<T>; ++part) weights[part][i] = parts[part];
  }
}

// The output of the tile's columns, of what the chunks of its rows gave: see Tile::join_to.
template <typename T, int kDim, int kColumns, typename Sums>
__device__ void write_out(const AttentionArguments<T>& a, const Tile<T, kDim, kColumns>& tile,
                          const Softmax (&softmax)[2], Sums sums) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (tile.token[half] < 0) continue;
    const float unit = unit_of(softmax[half], tile.position[half]);
    T* to = a.out + (int64_t{tile.token[half]} * a.heads + tile.head[half]) * kDim + tile.column;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      if (!tile.has_column(n * 8)) continue;
      const float4 all = sums(n);
      const float2 mine = half == 0 ? float2{all.x, all.y} : float2{all.z, all.w};
      *reinterpret_cast<uint32_t*>(to + n * 8 + lane % 4 * 2) =
          pair_of<T>(scaled(mine.x, unit), scaled(mine.y, unit));
    }
  }
}

// As many runs of `rows` rows as there can be, however the tokens are shared by
// the requests.
template <typename T>
int64_t most_runs(const AttentionArguments<T>& a, int64_t rows) {
  return std::min(a.tokens * a.group / rows + a.requests, a.tokens * (a.group / rows + 1));
}

// Calls body.template operator()<kDim>() for a head_dim that the tensor cores
// suit. False, with nothing done, where they do not suit it or the dtype or the
// addresses.
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
