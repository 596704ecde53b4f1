// The thread of a block that copies ahead: its weights, which lie one after another, and its tiles
// of K and V, 16 rows each.
#pragma once

#include "kernels/persistent/cluster_plan.cuh"

namespace lockstep::persistent::clustered {

// Cycles between pairs of slots of weights, and between slots of K and V, of which a layer has
// `slots`: bursts delay what clusters exchange. On an H200 a step of Qwen3-0.6B at contexts 128,
// 1024 and 4096 (1, 4 and 16 slots) takes 334, 373 and 496 us so. A kernel that kept some numbers
// in local memory took 334, 390 and 532 with 1000 cycles for the weights of whoever attends at each
// of them, 347, 381 and 521 with 700; this one takes 381 at 1024 with 600 for K and V.
struct Pace {
  int weights, positions;

  __device__ Pace(bool attends, int requests, int slots)
      : weights(!attends       ? 2200
                : requests > 1 ? 900
                               : max(600, 1030 - 30 * slots)),
        positions(requests > 1 || slots < 2 ? 600 : max(300, 5000 / max(slots, 4))) {}
};

template <int kRequests>
class CopyAhead {
 public:
  __device__ CopyAhead(const ClusterStep& step, Shared<kRequests>& shared, const Place& place)
      : c_(step),
        a_(step.step),
        shared_(shared),
        place_(place),
        data_(shared_address(shared.ring)),
        full_(shared_address(shared.full)),
        empty_(shared_address(shared.empty)),
        due_(cycles()) {
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy_));
  }

  __device__ void run() {
#pragma unroll 1
    for (int r = 0; r < kRequests; ++r) most_ = max(most_, shared_.tiles_of(r).count);
    const Pace pace(place_.attends, kRequests, (most_ + 1) / 2);
    from_ = c_.packed + first_slot(place_.block(), a_.layers) * kSlotBytes;
#pragma unroll 1
    for (layer_ = 0; layer_ < a_.layers; ++layer_) {
      if (place_.attends) {
        for (const CUtensorMap& map : c_.cache[layer_])
          asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
        weights(kQkvSlots, pace.weights);
        positions(pace.positions);
        weights(kOSlots, pace.weights);
      }
      weights(3 * place_.units(), pace.weights);
    }
    const char* head = c_.packed + first_slot(kBlocks, a_.layers) * kSlotBytes;
#pragma unroll 1
    for (int i = 0; i < place_.head_tiles; ++i) {
      from_ = head + int64_t{2 * (i * kBlocks + place_.block())} * kSlotBytes;
      weights(2, 0);
    }
  }

 private:
  // Slots are freed in order, so that the last of `count` tells of all: a wait costs some 200
  // cycles even where there is nothing to wait for. Those of several requests are freed by warps
  // that each are done with others first.
  __device__ void await_room(int count, int pace) {
    int last = at_ + count - 1;
    uint32_t parity = phase_ ^ 1;
    if (kRequests > 1 && count > 1) await_phase(a_, empty_ + 8 * at_, parity, layer_);
    if (last >= kSlots) last -= kSlots, parity ^= 1;
    await_phase(a_, empty_ + 8 * last, parity, layer_);
    if (pace > 0) {
      // The counter begins anew every few seconds: unsigned, for in signed numbers that overflow
      // the compiler may compare `now` with `due_` themselves, and a step waits for a whole turn of
      // it.
      uint32_t now = cycles();
      while (late_by(now) < 0) now = cycles();
      due_ = late_by(now) > pace ? now + pace : due_ + pace;
    }
  }
  __device__ static uint32_t cycles() { return static_cast<uint32_t>(clock()); }
  __device__ int late_by(uint32_t now) const { return static_cast<int>(now - due_); }
  // The next slot, into which bytes come.
  __device__ int take(int bytes) {
    const int slot = at_;
    if (++at_ == kSlots) at_ = 0, phase_ ^= 1;
    barrier_expect(full_ + 8 * slot, bytes);
    return slot;
  }

  // The next slots of the weights, two at a time.
  __device__ void weights(int slots, int pace) {
#pragma unroll 1
    for (int left = slots; left > 0; left -= 2) {
      const int count = left > 1 ? 2 : 1;
      await_room(count, pace);
#pragma unroll 1
      for (int i = 0; i < count; ++i, from_ += kSlotBytes) {
        const int slot = take(kSlotBytes);
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[%0], [%1], %2, [%3], %4;" ::"r"(data_ + slot * kSlotBytes),
            "l"(from_), "r"(kSlotBytes), "r"(full_ + 8 * slot), "l"(policy_)
            : "memory");
      }
    }
  }

  // The tiles of the requests from the newest on, two a slot, the requests in turns.
  __device__ void positions(int pace) {
#pragma unroll 1
    for (int tile = 0; tile < most_; tile += 2)
#pragma unroll 1
      for (int r = 0; r < kRequests; ++r) tiles(r, tile, pace);
  }
  // A tile on a page that is none stays away.
  __device__ void tiles(int request, int tile, int pace) {
    const int count = shared_.tiles_of(request).count;
    if (tile >= count) return;
    const int* tiles = shared_.tiles[request];
    const int first = tiles[tile], second = tile + 1 < count ? tiles[tile + 1] : -1;
    await_room(1, pace);
    const int slot = take(((first >= 0) + (second >= 0)) * 2 * kTileBytes);
    const uint32_t to = data_ + slot * kSlotBytes, barrier = full_ + 8 * slot;
    if (first >= 0) rows(first, to, barrier);
    if (second >= 0) rows(second, to + 2 * kTileBytes, barrier);
  }
  static constexpr int kTileBytes = kTile * kDim * 2;  // of K, or of V

  // K and V of this block's head at a tile of the pool.
  __device__ void rows(int position, uint32_t to, uint32_t barrier) const {
#pragma unroll
    for (int v = 0; v < 2; ++v)
      asm volatile(
          "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
          "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to + v * kTileBytes),
          "l"(&c_.cache[layer_][v]), "r"(0), "r"(place_.kv_head), "r"(position), "r"(barrier)
          : "memory");
  }

  const ClusterStep& c_;
  const Step& a_;
  static constexpr int kSlots = Shared<kRequests>::kSlots;
  Shared<kRequests>& shared_;
  const Place& place_;
  const uint32_t data_, full_, empty_;
  const char* from_ = nullptr;
  uint64_t policy_ = 0;
  int layer_ = 0, at_ = 0;
  int most_ = 0;  // tiles of a request
  uint32_t phase_ = 0, due_;
};

}  // namespace lockstep::persistent::clustered
