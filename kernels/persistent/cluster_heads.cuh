// The heads of a block in an attending cluster, of one request: from the products to its share of
// attention, of which each warp has some positions.
#pragma once

#include "kernels/persistent/cluster_attention.cuh"
#include "kernels/persistent/cluster_computing.cuh"

namespace lockstep::persistent::clustered {

class HeadComputer : protected Computing<1> {
 protected:
  using Computing<1>::Computing;

  __device__ void attend();

 private:
  static constexpr int kSlotUnits = 4;  // of positions: each warp has one in every second slot
  static constexpr int kTogether = 2;   // slots
  static_assert(kTogether * kSlotUnits == kWarps);

  // The next `count` slots: a lane has one.
  __device__ void await_slots(int count) const {
    if (lane_ < count) slots_.await(a_, slots_.ahead(lane_), layer_);
    __syncwarp();
  }
  __device__ void free_slots(int count) {
    __syncwarp();
    if (lane_ < count) slots_.free(slots_.ahead(lane_));
    slots_.advance(count);
  }

  // The heads of q, K and V, a warp each: to where attention reads them, and into the cache.
  __device__ void finish_heads(const Tiles& tiles) {
    const Layer& w = layer();
    const bool is_q = warp_ < kGroup, is_k = warp_ == kGroup;
    HeadPairs head, gain;
    if (is_q || is_k) {
      const bf16* weights = is_q ? w.q_norm : w.k_norm;
      gain = {load_pair_early(weights + 2 * lane_),
              load_pair_early(weights + kDim / 2 + 2 * lane_)};
    }
    await(shared_.qkv_came, phase_, kQkvBytes);
    head.read(shared_.qkv[0] + warp_ * (kDim / 2), lane_);
    const int at = (is_q ? place_.kv_head * kGroup + warp_ : place_.kv_head) * kDim;
    const bool shows = place_.member == warp_;
    if (is_q || is_k)
      finish(head, gain, 0,
             {shown(shows, is_q ? w.q_norm_out : w.k_norm_out, at),
              shown(shows, is_q ? w.q_rope_out : w.k_rope_out, at)});
    if (is_q)
      head.store(reinterpret_cast<bf16*>(shared_.q[0] + warp_ * (kDim / 2)), lane_);
    else if (tiles.has_last)
      put(tiles, is_k ? 0 : 1, head);
  }
  // The row of this step into its tile, whose copies are there, and into the cache.
  __device__ void put(const Tiles& tiles, int is_v, const HeadPairs& head) {
    const int row = (tiles.context - 1) % kTile;
    char* tile = shared_.ring[0] + slots_.at + is_v * (kSlotBytes / 4);
    head.store(reinterpret_cast<bf16*>(tile + row * kDim * 2), lane_);
    append(0, is_v != 0, head);
  }

  // This warp's 32 elements of the block's share of attention, to that block of the team which has
  // these elements of all shares.
  __device__ void hand_on_share(int units) const;
};

inline __device__ void HeadComputer::attend() {
  mark(Part::attention, 0);
  const Tiles tiles = shared_.tiles_of(0);
  // Units of eight positions, two a tile. The warps that finish no head begin with the newest ones,
  // and read theirs before the heads are there; not those of the tile that lacks this step's row.
  constexpr int kTileUnits = 2, kHeadWarps = kGroup + 2;
  const int units = kTileUnits * tiles.count, first = (warp_ + kWarps - kHeadWarps) % kWarps;
  const int slots = (units + kSlotUnits - 1) / kSlotUnits, own = first / kSlotUnits;
  const bool has_unit = first < units, has_head = warp_ < kHeadWarps;
  const bool puts = has_head && warp_ >= kGroup && tiles.has_last;
  const bool early = has_unit && !has_head && !(tiles.has_last && first < kTileUnits);
  WarpAttention attention(tiles, a_.score_scale);
  const auto load = [&](int unit) { attention.load(unit, slots_.data + slots_.ahead(own).at); };
  // Before there is anything else to wait for: also where a slot is full, that takes 200 cycles.
  await_slots(has_unit || puts ? min(slots, own + 1) : 0);
  if (has_head) finish_heads(tiles);
  if (early) load(first);
  meet(kAll, kThreads);
  mark(Part::attention, 1);
  attention.read_q(shared_.q[0]);
  if (has_unit && !early) load(first);
  // Copies come into the slot after the row that was stored there.
  if (puts) fence_before_copies();
  // Also slots for which this warp did not wait: all have freed what was in these two before, and
  // met since.
  free_slots(min(slots, kTogether));
  if (has_unit) attention.add(false);
#pragma unroll 1
  for (int s = kTogether; s < slots; s += kTogether) {
    const int count = min(slots - s, kTogether), unit = first + kSlotUnits * s;
    // For both, or this warp could run a turn of the ring ahead.
    await_slots(count);
    if (unit < units) load(unit);
    free_slots(count);
    if (unit < units) attention.add(true);
  }
  if (has_unit) attention.keep(shared_, first);
  meet(kAll, kThreads);
  hand_on_share(units);
  mark(Part::attention, 2);
}

inline __device__ void HeadComputer::hand_on_share(int units) const {
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
    store_in(to, shared_address(shared_.shares[0][place_.member]) + piece * 16, words, came);
  if (lane_ == 0)
    store_in(to, shared_address(shared_.scales[0][place_.member]),
             uint2{__float_as_uint(most), __float_as_uint(weight)}, came);
}

}  // namespace lockstep::persistent::clustered
