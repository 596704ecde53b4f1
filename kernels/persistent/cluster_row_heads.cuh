// The heads of a block in an attending cluster, of several requests, each by warps of its own: they
// make q each for itself, attend to some positions of each slot, and hand on what they have, so
// that no warp waits for another one.
#pragma once

#include "kernels/persistent/cluster_attention.cuh"
#include "kernels/persistent/cluster_computing.cuh"

namespace lockstep::persistent::clustered {

template <int kRequests>
class RowHeads : protected Computing<kRequests> {
 protected:
  using Base = Computing<kRequests>;
  using Base::a_, Base::shared_, Base::place_, Base::warp_, Base::lane_, Base::slots_;
  using Base::layer_, Base::phase_, Base::layer, Base::mark, Base::await;
  __device__ RowHeads(const ClusterStep& step, Shared<kRequests>& shared, const Place& place)
      : Base(step, shared, place) {}

  __device__ void attend() {
    mark(Part::attention, 0);
    const Tiles tiles = shared_.tiles_of(request());
    const bool brings = tiles.has_last && newest_unit(tiles) / kUnits == part();
    make_q();
    HeadPairs k = {}, v = {};
    const bool shows_k =
        shows(kGroup) && (layer().k_norm_out != nullptr || layer().k_rope_out != nullptr);
    if (brings || shows_k) k = finished(kGroup, layer().k_norm, k_taps());
    if (brings) v.read(shared_.qkv[request()] + (kGroup + 1) * (kDim / 2), lane_);
    mark(Part::attention, 1);
    WarpAttention attention(tiles, a_.score_scale);
    attention.read_q(shared_.q[warp_]);
    walk(tiles, attention, [&](uint32_t slot) {
      if (brings) put(tiles, slot, k, v);
    });
    attention.hand_on(shared_, request(), place_.member * kWarpsEach + part(), place_.team * kTeam);
    if (brings) {
      Base::append(request(), false, k);
      Base::append(request(), true, v);
    }
    mark(Part::attention, 2);
  }

 private:
  static constexpr int kWarpsEach = Sharing<kRequests>::kAttendWarps;
  // Units of eight positions, two a tile, four a slot, of which a warp has some.
  static constexpr int kTileUnits = 2, kSlotUnits = 2 * kTileUnits,
                       kUnits = kSlotUnits / kWarpsEach;

  __device__ int request() const { return warp_ % kRequests; }
  __device__ int part() const { return warp_ / kRequests; }  // of the request's warps
  __device__ static int newest_unit(const Tiles& tiles) {
    return (tiles.context - 1) % kTile / WarpAttention::kPositions;
  }

  // Taps of what all blocks of the team compute are one block's.
  __device__ bool shows(int head) const { return part() == 0 && place_.member == head; }
  __device__ HeadTaps q_taps(int head) const {
    const int at = ((request() * kKvHeads + place_.kv_head) * kGroup + head) * kDim;
    return {shown(shows(head), layer().q_norm_out, at), shown(shows(head), layer().q_rope_out, at)};
  }
  __device__ HeadTaps k_taps() const {
    const int at = (request() * kKvHeads + place_.kv_head) * kDim;
    return {shown(shows(kGroup), layer().k_norm_out, at),
            shown(shows(kGroup), layer().k_rope_out, at)};
  }
  __device__ HeadPairs finished(int head, const bf16* weights, const HeadTaps& taps) const {
    const HeadPairs gain = {load_pair_early(weights + 2 * lane_),
                            load_pair_early(weights + kDim / 2 + 2 * lane_)};
    HeadPairs made;
    made.read(shared_.qkv[request()] + head * (kDim / 2), lane_);
    Base::finish(made, gain, request(), taps);
    return made;
  }
  __device__ void make_q() {
    await(shared_.qkv_came, phase_, kQkvBytes);
#pragma unroll
    for (int h = 0; h < kGroup; ++h)
      finished(h, layer().q_norm, q_taps(h))
          .store(reinterpret_cast<bf16*>(shared_.q[warp_] + h * (kDim / 2)), lane_);
    __syncwarp();
  }

  // Slots come in rounds, one of each request that has one. Each warp waits for all of them, or one
  // could run a turn of the ring ahead, and frees those of other requests at once.
  template <typename Put>
  __device__ void walk(const Tiles& tiles, WarpAttention& attention, Put put_newest) {
    const int count = lane_ < kRequests ? shared_.tiles_of(lane_).count : 0;
    const int rounds = (__reduce_max_sync(~0u, count) + 1) / 2;
#pragma unroll 1
    for (int s = 0; s < rounds; ++s) {
      const unsigned have = __ballot_sync(~0u, count > 2 * s);
      const int slots = __popc(have), before = __popc(have & ((1u << request()) - 1));
      const int own = have >> request() & 1 ? before : -1;
      const auto slot = slots_.ahead(lane_ < slots ? lane_ : 0);
      if (lane_ < slots) slots_.await(a_, slot, layer_);
      __syncwarp();
      if (lane_ < slots && lane_ != own) slots_.free(slot);
      if (own >= 0) {
        const uint32_t at = slots_.data + __shfl_sync(~0u, slot.at, own);
        if (s == 0) put_newest(at);
        const int first = kSlotUnits * s + part() * kUnits;
#pragma unroll 1
        for (int unit = first; unit < min(first + kUnits, kTileUnits * tiles.count); ++unit) {
          attention.load(unit, at);
          attention.add(true);
        }
        __syncwarp();
        if (lane_ == own) slots_.free(slot);
      }
      slots_.advance(slots);
    }
  }

  // The row of this step into its tile, which only this warp reads there. Copies come into the slot
  // after it.
  __device__ void put(const Tiles& tiles, uint32_t slot, const HeadPairs& k, const HeadPairs& v) {
    char* tile = shared_.ring[0] + (slot - slots_.data);
    bf16* row = reinterpret_cast<bf16*>(tile + (tiles.context - 1) % kTile * kDim * 2);
    k.store(row, lane_);
    v.store(row + kSlotBytes / 4 / sizeof(bf16), lane_);
    fence_before_copies();
    __syncwarp();
  }
};

}  // namespace lockstep::persistent::clustered
