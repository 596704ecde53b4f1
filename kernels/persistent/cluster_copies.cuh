// The warp of a block that copies ahead: its weights, which lie one after another, by bulk copies,
// and its tiles of K and V row by row.
#pragma once

#include "kernels/persistent/cluster_plan.cuh"

namespace lockstep::persistent::clustered {

class CopyAhead {
 public:
  __device__ CopyAhead(const ClusterStep& step, Shared& shared, const Place& place)
      : c_(step),
        a_(step.step),
        shared_(shared),
        place_(place),
        lane_(threadIdx.x % kWarp),
        data_(shared_address(shared.ring)),
        full_(shared_address(shared.full)),
        empty_(shared_address(shared.empty)),
        due_(clock()) {
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy_));
  }

  __device__ void run() {
    const int pace = place_.attends ? c_.pace.attending : c_.pace.other;
    from_ = c_.packed + first_slot(place_.block(), a_.layers) * kSlotBytes;
#pragma unroll 1
    for (layer_ = 0; layer_ < a_.layers; ++layer_) {
      if (place_.attends) {
        weights(kQkvSlots, pace);
        positions();
        weights(kOSlots, pace);
      }
      weights(3 * place_.units(), pace);
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
  // cycles even where there is nothing to wait for.
  __device__ void await_room(int count, int pace) {
    int last = at_ + count - 1;
    uint32_t parity = phase_ ^ 1;
    if (last >= kSlots) last -= kSlots, parity ^= 1;
    await_phase(a_, empty_ + 8 * last, parity, layer_);
    if (pace > 0) {
      int now = static_cast<int>(clock());
      while (now - due_ < 0) now = static_cast<int>(clock());
      due_ = now - due_ > pace ? now + pace : due_ + pace;
    }
    __syncwarp();
  }
  __device__ int take() {
    const int slot = at_;
    if (++at_ == kSlots) at_ = 0, phase_ ^= 1;
    return slot;
  }

  // The next slots of the weights, two at a time.
  __device__ void weights(int slots, int pace) {
#pragma unroll 1
    for (int left = slots; left > 0; left -= 2) {
      const int count = left > 1 ? 2 : 1;
      await_room(count, pace);
      // Rows of K and V were stored into slots by other means than the copies that come now.
      if (place_.attends && lane_ == 0) fence_before_copies();
#pragma unroll 1
      for (int i = 0; i < count; ++i, from_ += kSlotBytes) {
        const int slot = take();
        if (lane_ != 0) continue;
        barrier_expect(full_ + 8 * slot, kSlotBytes);
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[%0], [%1], %2, [%3], %4;" ::"r"(data_ + slot * kSlotBytes),
            "l"(from_), "r"(kSlotBytes), "r"(full_ + 8 * slot), "l"(policy_)
            : "memory");
      }
    }
  }

  // The tiles of the layer from the newest on, two a slot, without this step's row.
  __device__ void positions() {
#pragma unroll 1
    for (int tile = 0; tile < place_.tiles; tile += 2) {
      await_room(1, c_.pace.positions);
      const int slot = take();
#pragma unroll 1
      for (int i = 0; i < 2 && tile + i < place_.tiles; ++i)
        rows(tile + i, data_ + slot * kSlotBytes + i * 2 * kTileBytes);
      // The barrier waits for these copies too, and ends with the arrival of the first lane.
      asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(full_ + 8 * slot)
                   : "memory");
      __syncwarp();
      if (lane_ == 0) barrier_arrive(full_ + 8 * slot);
    }
  }
  static constexpr int kTileBytes = kTile * kDim * 2;  // of K, or of V

  // A lane copies a piece of 16 bytes of every second row.
  __device__ void rows(int tile, uint32_t to) {
    const int page = shared_.pages[tile];
    if (page < 0) return;
    const int position = (place_.newest - kTeam * tile) * kTile, row = lane_ / 16;
    const int64_t slot = int64_t{page} * a_.page_size + position % a_.page_size + row;
    const int64_t at = (slot * kKvHeads + place_.kv_head) * kDim + lane_ % 16 * 8;
    const Layer& w = shared_.layers[layer_];
    const int left = place_.context - 1 - position - row;
    to += row * kDim * 2 + lane_ % 16 * 16;
#pragma unroll 1
    for (int v = 0; v < 2; ++v, to += kTileBytes) {
      const bf16* from = (v == 0 ? w.cache_k : w.cache_v) + at;
#pragma unroll
      for (int i = 0; i < kTile / 2; ++i)
        if (2 * i < left)
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i * 4 * kDim),
                       "l"(from + i * 2 * kKvHeads * kDim)
                       : "memory");
    }
  }

  const ClusterStep& c_;
  const Step& a_;
  Shared& shared_;
  const Place& place_;
  const int lane_;
  const uint32_t data_, full_, empty_;
  const char* from_ = nullptr;
  uint64_t policy_ = 0;
  int layer_ = 0, at_ = 0, due_;
  uint32_t phase_ = 0;
};

}  // namespace lockstep::persistent::clustered
