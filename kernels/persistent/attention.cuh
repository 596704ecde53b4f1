// Attention within a decode step: a share of the positions of a KV head by a block, tiles of 16 by
// its warps; then shares are added by a warp a head. The heads of a group are columns of one
// product with the keys.
#pragma once

#include "kernels/cuda/rope.cuh"
#include "kernels/persistent/block.cuh"

namespace lockstep::persistent {

__device__ inline float exp_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <int kDim, int kGroup>
class Attention {
 public:
  __device__ Attention(Block& block, int layer)
      : b(block), a(block.a), layer_(layer), w(block.layers[layer]) {}

  __device__ void share(const Share& s) {
#pragma unroll 1
    for (int i = b.warp; i < kGroup + 2; i += kWarps)
      if (i < kGroup || s.has_last()) head(s, i);
    sync_computing();
    b.mark(layer_, 1, 1);
    start();
#pragma unroll 1
    for (int tile = 0; tile < s.tiles; tile += Copy::kTiles) {
      b.ring.await_full(1, b.watch);
#pragma unroll 1
      for (int i = 0; i < Copy::kTiles && tile + i < s.tiles; ++i)
        if ((tile + i) % kWarps == b.warp)
          add(s, tile + i, b.ring.slot(0) + 2 * i * Copy::kTileBytes);
      b.ring.release(1);
    }
    if (b.warp < s.tiles) keep();
    sync_computing();
    publish(s);
  }

  // Adds the shares of a head of a row, by this warp, for the dims of a part: one a lane.
  __device__ void reduce(int row, int head, int part, int shares);

 private:
  using Copy = Copier<kDim>;
  static constexpr int kChunks = kDim / kWarp;  // of a head, elements of a lane
  static constexpr int kPitch = 2 * kDim + 64;  // of heads in shared memory

  __device__ char* head_at(int i) const { return b.shared + b.room.heads + i * kPitch; }
  __device__ bf16* fresh(int i) const {  // K, V of this step's position
    return reinterpret_cast<bf16*>(b.shared + b.room.fresh) + i * kDim;
  }

  // The head `i` of the group, or its K or V: from the product to where attention reads it.
  __device__ void head(const Share& s, int i);
  __device__ void normalise(bf16 (&e)[kChunks], const bf16 (&gain)[kChunks]) const {
    float squares = 0;
    for (int c = 0; c < kChunks; ++c) squares = __fmaf_rn(widen(e[c]), widen(e[c]), squares);
    const float scale = norm_scale(warp_sum(squares), kDim, a.eps);
    for (int c = 0; c < kChunks; ++c) e[c] = normalised(e[c], scale, gain[c]);
  }
  __device__ static void rotate(bf16 (&e)[kChunks], const Rotation (&turns)[kChunks / 2]) {
    for (int c = 0; c < kChunks / 2; ++c) {
      const float low = widen(e[c]), high = widen(e[c + kChunks / 2]);
      e[c] = narrow<bf16>(turns[c].low(low, high));
      e[c + kChunks / 2] = narrow<bf16>(turns[c].high(low, high));
    }
  }
  __device__ void store(bf16* to, int64_t at, const bf16 (&e)[kChunks]) const {
    if (to == nullptr) return;
    for (int c = 0; c < kChunks; ++c) to[at + b.lane + c * kWarp] = e[c];
  }
  __device__ void append(const Share& s, bf16* cache, const bf16 (&e)[kChunks]) const {
    const int64_t slot = a.slots[s.row];
    if (slot >= a.pool && b.lane == 0) report(a.bad, BadIndex::Of::slot, a.pool, slot, s.row);
    if (slot < 0 || slot >= a.pool) return;
    store(cache, (slot * a.kv_heads + s.head) * kDim, e);
  }

  __device__ void start() {
    for (int i = 0; i < 2; ++i) most_[i] = -INFINITY, weight_[i] = 0;
    for (int h = 0; h < kGroup; ++h)
      for (int c = 0; c < kChunks; ++c) sum_[h][c] = 0;
  }

  // The scores of 16 positions with all heads of the group: columns 2 (lane % 4) and the next one,
  // rows lane / 4 and eight further.
  __device__ void scores(float (&score)[4], uint32_t keys) const;

  __device__ void add(const Share& s, int tile, uint32_t keys);
  // A lane has as many dims of the output, next to each other, as it has chunks of a head.
  __device__ void add_values(const float (&p)[4], int positions, uint32_t values) {
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
      if (i >= positions) break;
      float v[kChunks];
      read_values(v, values + i * kDim * 2);
#pragma unroll
      for (int h = 0; h < kGroup; ++h) {
        const float k = __shfl_sync(~0u, p[i / kOctet * 2 + h % 2], i % kOctet * 4 + h / 2);
        for (int c = 0; c < kChunks; ++c) sum_[h][c] = __fmaf_rn(k, v[c], sum_[h][c]);
      }
    }
  }
  __device__ void read_values(float (&v)[kChunks], uint32_t row) const {
#pragma unroll
    for (int c = 0; c < kChunks; c += 2) {
      uint32_t two;
      asm volatile("ld.shared.u32 %0, [%1];"
                   : "=r"(two)
                   : "r"(row + (b.lane * kChunks + c) * 2)
                   : "memory");
      v[c] = __uint_as_float(two << 16);
      v[c + 1] = __uint_as_float(two & 0xffff0000u);
    }
  }
  // This step's K and V into the tile, where the copies left its row out.
  __device__ void put_fresh(int position, uint32_t keys) const {
    for (int i = 0; i < 2; ++i) {
      const uint32_t row = keys + i * Copy::kTileBytes + position * kDim * 2;
      if (b.lane < kDim / 8) {
        const uint4 piece = load_shared(shared_address(fresh(i)) + b.lane * 16);
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(row + b.lane * 16),
                     "r"(piece.x), "r"(piece.y), "r"(piece.z), "r"(piece.w)
                     : "memory");
      }
    }
    fence_before_copies();
    __syncwarp();
  }

  // A warp's sums to shared memory, where the block adds them.
  __device__ float* warp_sums(int warp, int h) const {
    return reinterpret_cast<float*>(b.shared + b.room.sums) + (warp * kGroup + h) * kDim;
  }
  __device__ float* warp_scale(int warp, int h) const {
    return reinterpret_cast<float*>(b.shared + b.room.scales) + (warp * kOctet + h) * 2;
  }
  __device__ void keep() {
    for (int h = 0; h < kGroup; ++h)
      for (int c = 0; c < kChunks; ++c) warp_sums(b.warp, h)[b.lane * kChunks + c] = sum_[h][c];
    for (int i = 0; i < 2; ++i) {
      for (int o = 4; o < kWarp; o *= 2) weight_[i] += __shfl_xor_sync(~0u, weight_[i], o);
      const int h = b.lane * 2 + i;
      if (b.lane < 4 && h < kGroup) {
        warp_scale(b.warp, h)[0] = most_[i];
        warp_scale(b.warp, h)[1] = weight_[i];
      }
    }
  }

  __device__ unsigned long long* partial(int row, int head, int share) const {
    return a.partial + ((int64_t{row} * a.heads + head) * kMostShares + share) * (kDim + 2);
  }
  __device__ void give(int row, int head, int dim, float value) const {
    const bf16 number = narrow<bf16>(value);
    const int at = head * kDim + dim;
    store_word(b.word(row, b.places.attention + at), tagged(number, b.tags.of(layer_)));
    if (w.attention_out != nullptr) w.attention_out[int64_t{row} * a.heads * kDim + at] = number;
  }
  __device__ void publish(const Share& s) const;

  // Those of the first `count` pairs, `stride` apart, that have not come are read again until they
  // have; the others were read before.
  template <int kCount>
  __device__ void await_partials(unsigned long long (&pairs)[kCount],
                                 const unsigned long long* from, int64_t stride, int count) const {
    const uint32_t tag = b.tags.of(layer_);
    for (int spins = 1;; ++spins) {
      bool all = true;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (i >= count || has_tag(pairs[i], tag)) continue;
        pairs[i] = load_pair(from + i * stride);
        all = false;
      }
      if (all || b.watch.gives_up(spins, layer_)) return;
    }
  }

  Block& b;
  const Step& a;
  int layer_;
  const Layer& w;
  float most_[2], weight_[2];
  float sum_[kGroup][kChunks];
};

template <int kDim, int kGroup>
inline __device__ void Attention<kDim, kGroup>::head(const Share& s, int i) {
  const bool is_q = i < kGroup, is_k = i == kGroup;
  const int q = a.heads * kDim, kv = a.kv_heads * kDim;
  const int at = is_q ? (s.head * kGroup + i) * kDim : q + (is_k ? 0 : kv) + s.head * kDim;
  const bf16* weights = is_q ? w.q_norm : is_k ? w.k_norm : nullptr;
  bf16 gain[kChunks], e[kChunks];
  Rotation turns[kChunks / 2];
  if (weights != nullptr)
    for (int c = 0; c < kChunks; ++c) gain[c] = load_early(weights + b.lane + c * kWarp);
  if (is_q || is_k)
    for (int c = 0; c < kChunks / 2; ++c)
      turns[c] = Rotation({a.cos, a.sin, a.positions, a.entries, kDim / 2, a.bad}, s.row,
                          b.lane + c * kWarp);
  const uint32_t* from = b.word(s.row, b.places.qkv + at) + b.lane;
  uint32_t words[kChunks];
  await_each(words, from, b.tags.of(layer_), b.watch, layer_);
  for (int c = 0; c < kChunks; ++c) e[c] = bits_in(words[c]);
  if (weights != nullptr) normalise(e, gain);
  const bool shown = s.has_last();
  const int64_t row_at = is_q ? int64_t{s.row} * q + at : int64_t{s.row} * kv + s.head * kDim;
  if (shown && weights != nullptr) store(is_q ? w.q_norm_out : w.k_norm_out, row_at, e);
  if (is_q || is_k) rotate(e, turns);
  if (shown && is_q) store(w.q_rope_out, row_at, e);
  if (shown && is_k) store(w.k_rope_out, row_at, e);
  store(is_q ? reinterpret_cast<bf16*>(head_at(i)) : fresh(is_k ? 0 : 1), 0, e);
  if (!is_q) append(s, is_k ? w.cache_k : w.cache_v, e);
}

template <int kDim, int kGroup>
inline __device__ void Attention<kDim, kGroup>::scores(float (&score)[4], uint32_t keys) const {
  float sum[2][4] = {};
  const uint32_t q = shared_address(head_at(b.lane / 4)) + b.lane % 4 * 16;
#pragma unroll
  for (int step = 0; step < kDim / 64; ++step) {
    Fragment low, high;
    low.read(keys + b.lane / 4 * kDim * 2 + step * 128, b.lane);
    high.read(keys + (b.lane / 4 + kOctet) * kDim * 2 + step * 128, b.lane);
    uint4 in[2] = {};
    if (b.lane / 4 < kGroup) {
      in[0] = load_shared(q + step * 128);
      in[1] = load_shared(q + step * 128 + 64);
    }
    multiply(sum, low, high, in);
  }
  for (int i = 0; i < 4; ++i) score[i] = (sum[0][i] + sum[1][i]) * a.score_scale;
}

template <int kDim, int kGroup>
inline __device__ void Attention<kDim, kGroup>::add(const Share& s, int tile, uint32_t keys) {
  const int left = s.context - (s.first_tile + tile) * kTile;  // positions from the first on
  if (left <= kTile) put_fresh(left - 1, keys);
  float p[4];
  scores(p, keys);
  const bool has_low = b.lane / 4 < left, has_high = b.lane / 4 + kOctet < left;
  float scale[2];
  for (int i = 0; i < 2; ++i) {
    float most = fmaxf(has_low ? p[i] : -INFINITY, has_high ? p[i + 2] : -INFINITY);
    for (int o = 4; o < kWarp; o *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    most = fmaxf(most_[i], most);
    scale[i] = most_[i] == -INFINITY ? 0 : exp_2(most_[i] - most);
    most_[i] = most;
    p[i] = has_low ? exp_2(p[i] - most) : 0;
    p[i + 2] = has_high ? exp_2(p[i + 2] - most) : 0;
    weight_[i] = weight_[i] * scale[i] + (p[i] + p[i + 2]);
  }
#pragma unroll
  for (int h = 0; h < kGroup; ++h) {
    const float k = __shfl_sync(~0u, scale[h % 2], h / 2);
    for (int c = 0; c < kChunks; ++c) sum_[h][c] *= k;
  }
  add_values(p, min(left, kTile), keys + Copy::kTileBytes);
}

template <int kDim, int kGroup>
inline __device__ void Attention<kDim, kGroup>::publish(const Share& s) const {
  const int warps = min(kWarps, s.tiles);
#pragma unroll 1
  for (int i = b.thread; i < kGroup * kDim; i += kThreads) {
    const int h = i / kDim, dim = i % kDim, head = s.head * kGroup + h;
    float most = -INFINITY, weight = 0, sum = 0;
#pragma unroll 1
    for (int k = 0; k < warps; ++k) most = fmaxf(most, warp_scale(k, h)[0]);
#pragma unroll 1
    for (int k = 0; k < warps; ++k) {
      const float scale = exp_2(warp_scale(k, h)[0] - most);
      weight = __fmaf_rn(scale, warp_scale(k, h)[1], weight);
      sum = __fmaf_rn(scale, warp_sums(k, h)[dim], sum);
    }
    if (s.shares == 1) {
      give(s.row, head, dim, s.tiles == 0 ? 0 : __fdiv_rn(sum, weight));
      continue;
    }
    unsigned long long* to = partial(s.row, head, s.index);
    const uint32_t tag = b.tags.of(layer_);
    store_pair(to + dim, tagged(sum, tag));
    if (dim < 2) store_pair(to + kDim + dim, tagged(dim == 0 ? most : weight, tag));
  }
}

template <int kDim, int kGroup>
__device__ void Attention<kDim, kGroup>::reduce(int row, int head, int part, int shares) {
  static_assert(kMostShares <= 2 * kWarp);
  constexpr int kTogether = 16;
  constexpr int64_t kStride = kDim + 2;
  const unsigned long long* from = partial(row, head, 0);
  const unsigned long long* sums = from + part * kWarp + b.lane;
  unsigned long long pairs[kTogether], ends[2][2] = {};
#pragma unroll
  for (int i = 0; i < kTogether; ++i) pairs[i] = i < shares ? load_pair(sums + i * kStride) : 0;
  float most[2] = {-INFINITY, -INFINITY}, scale[2], weight = 0;
  for (int i = 0; i < 2; ++i) {
    const int share = b.lane + i * kWarp;
    if (share >= shares) continue;
    await_partials(ends[i], from + share * kStride + kDim, 1, 2);
    most[i] = number_in(ends[i][0]);
  }
  __syncwarp();
  float all = fmaxf(most[0], most[1]);
  for (int o = 1; o < kWarp; o *= 2) all = fmaxf(all, __shfl_xor_sync(~0u, all, o));
  for (int i = 0; i < 2; ++i) {
    scale[i] = b.lane + i * kWarp < shares ? exp_2(most[i] - all) : 0;
    weight = __fmaf_rn(scale[i], number_in(ends[i][1]), weight);
  }
  weight = warp_sum(weight);
  float sum = 0;
#pragma unroll 1
  for (int first = 0; first < shares; first += kTogether) {
    if (first > 0) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) pairs[i] = 0;
    }
    await_partials(pairs, sums + first * kStride, kStride, min(kTogether, shares - first));
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int share = first + i;
      const float k = __shfl_sync(~0u, share < kWarp ? scale[0] : scale[1], share % kWarp);
      if (share < shares) sum = __fmaf_rn(k, number_in(pairs[i]), sum);
    }
  }
  give(row, head, part * kWarp + b.lane, __fdiv_rn(sum, weight));
}

}  // namespace lockstep::persistent
