// The heads of a block in an attending cluster: from the products to its share of attention.
#pragma once

#include "kernels/persistent/cluster_attention.cuh"
#include "kernels/persistent/cluster_computing.cuh"

namespace lockstep::persistent::clustered {

template <int kRequests>
class HeadComputer : protected Computing<kRequests> {
 protected:
  using Base = Computing<kRequests>;
  using Base::a_, Base::shared_, Base::place_, Base::warp_, Base::lane_, Base::slots_;
  using Base::layer_, Base::phase_, Base::layer, Base::mark, Base::await;
  __device__ HeadComputer(const ClusterStep& step, Shared<kRequests>& shared, const Place& place,
                          uint32_t epoch)
      : Base(step, shared, place, epoch) {}

  __device__ void attend() {
    mark(Part::attention, 0);
#pragma unroll 1
    for (int r = 0; r < kRequests; ++r) attend_to(r);
    mark(Part::attention, 2);
  }

 private:
  __device__ void attend_to(int request);

  // The heads of q, K and V, a warp each: to where attention reads them, and into the cache.
  __device__ void finish_heads(int request, const Tiles& tiles) {
    const Layer& w = layer();
    const bool is_q = warp_ < kGroup, is_k = warp_ == kGroup;
    HeadPairs head, gain;
    if (is_q || is_k) {
      const bf16* weights = is_q ? w.q_norm : w.k_norm;
      gain = {load_pair_early(weights + 2 * lane_),
              load_pair_early(weights + kDim / 2 + 2 * lane_)};
    }
    if (request == 0) await(shared_.qkv_came, phase_, kQkvBytes);
    head.read(shared_.qkv[request] + warp_ * (kDim / 2), lane_);
    const int kv_head = request * kKvHeads + place_.kv_head;
    const int at = (is_q ? kv_head * kGroup + warp_ : kv_head) * kDim;
    const bool shows = place_.member == warp_;
    if (is_q || is_k) {
      head.normalise(gain, a_.eps);
      bf16* normed = is_q ? w.q_norm_out : w.k_norm_out;
      if (shows && normed != nullptr) head.store(normed + at, lane_);
      Rotation turn[2];
      for (int i = 0; i < 2; ++i) {
        const float2 angle = shared_.angles[request][2 * lane_ + i];
        turn[i].cos = angle.x, turn[i].sin = angle.y;
      }
      head.rotate(turn);
      bf16* roped = is_q ? w.q_rope_out : w.k_rope_out;
      if (shows && roped != nullptr) head.store(roped + at, lane_);
    }
    if (is_q)
      head.store(reinterpret_cast<bf16*>(shared_.q + warp_ * (kDim / 2)), lane_);
    else if (tiles.has_last)
      append(request, tiles, is_k ? 0 : 1, head);
  }
  // The row of this step into its tile, once the tile's copies are there, and into the cache.
  __device__ void append(int request, const Tiles& tiles, int is_v, const HeadPairs& head) {
    slots_.await(a_, slots_.ahead(0), layer_);
    const int row = (tiles.context - 1) % kTile;
    char* tile = shared_.ring[0] + slots_.at + is_v * (kSlotBytes / 4);
    head.store(reinterpret_cast<bf16*>(tile + row * kDim * 2), lane_);
    const int64_t slot = a_.slots[request];
    if (slot >= a_.pool && lane_ == 0) report(a_.bad, BadIndex::Of::slot, a_.pool, slot, request);
    if (slot < 0 || slot >= a_.pool) return;
    bf16* cache = is_v ? layer().cache_v : layer().cache_k;
    head.store(cache + (slot * kKvHeads + place_.kv_head) * kDim, lane_);
  }

  // This warp's 32 elements of the block's share of attention, to that block of the team which has
  // these elements of all shares.
  __device__ void hand_on_share(int request, int units) const;
};

template <int kRequests>
inline __device__ void HeadComputer<kRequests>::attend_to(int request) {
  const Tiles tiles = shared_.tiles_of(request);
  // Units of eight positions, two a tile. The warps that finish no head begin with the newest ones,
  // and read theirs before the heads are there; not those of the tile that lacks this step's row.
  constexpr int kTileUnits = 2, kSlotUnits = 2 * kTileUnits, kHeadWarps = kGroup + 2;
  const int units = kTileUnits * tiles.count, first = (warp_ + kWarps - kHeadWarps) % kWarps;
  const bool has_unit = first < units;
  const bool early = has_unit && warp_ >= kHeadWarps && !(tiles.has_last && first < kTileUnits);
  const auto slot = slots_.ahead(first / kSlotUnits);
  WarpAttention attention(tiles, a_.score_scale);
  const auto load_first = [&] {
    slots_.await(a_, slot, layer_);
    attention.load(first, slots_.data + slot.at);
  };
  if (warp_ < kHeadWarps) finish_heads(request, tiles);
  if (early) load_first();
  meet(kAll, kThreads);
  if (request == 0) mark(Part::attention, 1);
  attention.read_q(shared_.q);
  if (has_unit) {
    if (!early) load_first();
    attention.add(false);
  }
#pragma unroll 1
  for (int s = 0; 2 * s < tiles.count; ++s) {
    const auto own = slots_.ahead(0);
    slots_.await(a_, own, layer_);
    const int unit = kSlotUnits * s + (first + kWarps - kSlotUnits * s % kWarps) % kWarps;
    if (s > 1 && unit < kSlotUnits * (s + 1) && unit < units) {
      attention.load(unit, slots_.data + own.at);
      attention.add(true);
    }
    // Copies come into the slot after the row that was stored here.
    if (s == 0 && tiles.has_last && warp_ >= kGroup && warp_ < kHeadWarps) fence_before_copies();
    __syncwarp();
    if (lane_ == 0) slots_.free(own);
    slots_.advance(1);
  }
  if (has_unit) attention.keep(shared_, first);
  meet(kAll, kThreads);
  hand_on_share(request, units);
}

template <int kRequests>
inline __device__ void HeadComputer<kRequests>::hand_on_share(int request, int units) const {
  const int live = min(kWarps, units), i = lane_ % kWarps;
  const int h = warp_ / (kDim / kShare), dim = warp_ % (kDim / kShare) * kShare + lane_;
  const float own = i < live ? shared_.most[h][i] : -INFINITY;
  float most = own, weight = i < live ? shared_.weight[h][i] : 0, sum = 0;
  for (int o = 1; o < kWarps; o *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
  const float scale = own == -INFINITY ? 0 : exp_2(own - most);
  weight *= scale;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float k = __shfl_sync(~0u, scale, w);
    if (w < live) sum = __fmaf_rn(k, shared_.outputs[w][h][dim], sum);
  }
  for (int o = 1; o < kWarps; o *= 2) weight += __shfl_xor_sync(~0u, weight, o);
  const int to = place_.team * kTeam + warp_, piece = lane_ % kWarps;
  const uint4 words = words_of_lanes<1>(__float_as_uint(sum), 4 * piece);
  const uint32_t came = shared_address(&shared_.shares_came);
  if (lane_ < kWarps)
    store_in(to, shared_address(shared_.shares[request][place_.member]) + piece * 16, words, came);
  if (lane_ == 0)
    store_in(to, shared_address(shared_.scales[request][place_.member]),
             uint2{__float_as_uint(most), __float_as_uint(weight)}, came);
}

}  // namespace lockstep::persistent::clustered
