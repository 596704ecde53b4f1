// Attention of a block: two heads of q over the block's tiles of a KV head, eight positions a warp
// at once. Scores are products with the keys as rows: dims 0 to 63 of eight positions are rows 0 to
// 7 of the tile, dims 64 to 127 are rows 8 to 15; the operand's columns 0 and 1 are the two heads'
// first dims, columns 2 and 3 the others.
#pragma once

#include "kernels/persistent/attention.cuh"
#include "kernels/persistent/cluster_products.cuh"

namespace lockstep::persistent::clustered {

// One warp's share of the positions. Its lanes 4 i and 4 i + 1 have position i of the two heads,
// and all lanes four dims of the output of both.
class WarpAttention {
 public:
  static constexpr int kPositions = 8;  // half a tile: a unit

  __device__ WarpAttention(const Tiles& tiles, float score_scale)
      : tiles_(tiles), scale_(score_scale), lane_(threadIdx.x % kWarp) {}

  // Reads K and V of a unit, whose slot is at `slot`, into registers. Odd rows read their halves
  // the other way round, so that eight lanes read all banks.
  __device__ void load(int unit, uint32_t slot) {
    const int tile = unit / 2, half = unit % 2;
    live_ = tiles_.context - (tiles_.newest - kTeam * tile) * kTile - kPositions * half;
    const uint32_t at = slot + tile % 2 * (kSlotBytes / 2) + half * kPositions * kDim * 2;
    const uint32_t swap = lane_ & 4 ? 64 : 0, k = at + lane_ / 4 * kDim * 2 + lane_ % 4 * 16;
    keys_[0] = load_shared(k + swap);
    keys_[1] = load_shared(k + (swap ^ 64));
    keys_[2] = load_shared(k + kDim + swap);
    keys_[3] = load_shared(k + kDim + (swap ^ 64));
    const uint32_t v = at + kSlotBytes / 4 + lane_ * 8;
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      values_[i] = {0, 0};
      if (i < live_)
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                     : "=r"(values_[i].x), "=r"(values_[i].y)
                     : "r"(v + i * kDim * 2)
                     : "memory");
    }
  }

  __device__ void read_q(const uint32_t* from) {
    if (lane_ >= 16) return;
    const uint32_t* q = from + (lane_ / 4 % 2) * (kDim / 2) + lane_ / 8 * (kDim / 4);
    q_[0] = *reinterpret_cast<const uint4*>(q + 4 * (lane_ % 4));
    q_[1] = *reinterpret_cast<const uint4*>(q + 4 * (lane_ % 4) + kDim / 8);
  }

  // Adds the unit that was loaded last; `more`: it is not the first.
  __device__ void add(bool more) {
    const float score = this->score();
    float most = score;
    for (int o = 4; o < kWarp; o *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    most = fmaxf(most_, most);
    const float scale = most_ == -INFINITY ? 0 : exp_2(most_ - most);
    const float p = is_live() ? exp_2(score - most) : 0;
    most_ = most;
    weight_ = weight_ * scale + p;
    if (more) {
#pragma unroll
      for (int h = 0; h < kGroup; ++h) {
        const float k = __shfl_sync(~0u, scale, h);
        for (float& x : sum_[h]) x *= k;
      }
    }
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      const float v[4] = {low_of(values_[i].x), high_of(values_[i].x), low_of(values_[i].y),
                          high_of(values_[i].y)};
#pragma unroll
      for (int h = 0; h < kGroup; ++h) {
        const float k = __shfl_sync(~0u, p, 4 * i + h);
        for (int c = 0; c < 4; ++c) sum_[h][c] = __fmaf_rn(k, v[c], sum_[h][c]);
      }
    }
  }

  // Hands on what the warp has, as share `number` of a request, to those blocks of the team, the
  // first of which is `first_block`, that have its elements of all shares: 32 each.
  template <typename Memory>
  __device__ void hand_on(Memory& shared, int request, int number, int first_block) {
    for (int o = 4; o < kWarp; o *= 2) weight_ += __shfl_xor_sync(~0u, weight_, o);
    const uint32_t came = shared_address(&shared.shares_came);
    const uint32_t to = shared_address(shared.shares[request][number]) + lane_ % 8 * 16;
#pragma unroll
    for (int h = 0; h < kGroup; ++h)
      store_in(first_block + h * (kDim / kShare) + lane_ / 8, to,
               uint4{__float_as_uint(sum_[h][0]), __float_as_uint(sum_[h][1]),
                     __float_as_uint(sum_[h][2]), __float_as_uint(sum_[h][3])},
               came);
    // Lane h has the head's maximum and weight.
    const int head = lane_ / (kDim / kShare) % kGroup;
    const uint2 scale = {__float_as_uint(__shfl_sync(~0u, most_, head)),
                         __float_as_uint(__shfl_sync(~0u, weight_, head))};
    if (lane_ < kTeam)
      store_in(first_block + lane_, shared_address(shared.scales[request][number]), scale, came);
  }

  // To shared memory, as what warp `number` has.
  template <typename Memory>
  __device__ void keep(Memory& shared, int number) {
    for (int o = 4; o < kWarp; o *= 2) weight_ += __shfl_xor_sync(~0u, weight_, o);
    for (int h = 0; h < kGroup; ++h)
      *reinterpret_cast<float4*>(&shared.outputs[number][h][4 * lane_]) = {sum_[h][0], sum_[h][1],
                                                                           sum_[h][2], sum_[h][3]};
    if (lane_ >= kGroup) return;
    shared.most[lane_][number] = most_;
    shared.weight[lane_][number] = weight_;
  }

 private:
  __device__ bool is_live() const { return lane_ / 4 < live_; }
  __device__ float score() {
    if (lane_ & 4) {
      uint4 other = keys_[0];
      keys_[0] = keys_[1], keys_[1] = other;
      other = keys_[2];
      keys_[2] = keys_[3], keys_[3] = other;
    }
    float c[4] = {}, d[4] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 &low = keys_[i], &high = keys_[i + 2];
      multiply_add(c, {low.x, high.x, low.y, high.y}, q_[i].x, q_[i].y);
      multiply_add(d, {low.z, high.z, low.w, high.w}, q_[i].z, q_[i].w);
    }
    // Lane 4 i has the first dims of both heads, the next lane the others.
    const bool second = lane_ & 1;
    const float give = second ? c[2] + d[2] : c[1] + d[1];
    const float own = second ? c[3] + d[3] : c[0] + d[0];
    const float sum = __shfl_xor_sync(~0u, give, 1) + own;
    return is_live() ? sum * scale_ : -INFINITY;
  }

  const Tiles& tiles_;
  const float scale_;
  const int lane_;
  uint4 keys_[4], q_[2] = {};
  uint2 values_[kPositions];
  int live_ = 0;
  float most_ = -INFINITY, weight_ = 0, sum_[kGroup][4] = {};
};

}  // namespace lockstep::persistent::clustered
