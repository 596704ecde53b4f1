// A ring of slots in shared memory, which one warp fills by bulk copies (cp.async.bulk) far ahead
// of those who compute: weights and pages do not depend on the step, so that memory is read while
// blocks wait for each other. Source: NVIDIA, PTX ISA 8.0 (mbarrier, cp.async.bulk).
#pragma once

#include "kernels/persistent/exchange.cuh"

namespace lockstep::persistent {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline bool barrier_passed(uint32_t barrier, uint32_t parity) {
  uint32_t passed;
  asm volatile(
      "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed != 0;
}
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity, const Watch& watch) {
  for (int spins = 1; !barrier_passed(barrier, parity) && !watch.gives_up(spins, -1); ++spins) {
  }
}
// Copies bytes, a multiple of 16, from aligned global to shared memory; read once, so first to go.
__device__ inline void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "{.reg .b64 policy; createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], policy;}" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// Orders this thread's stores into a slot before copies that come into it later.
__device__ inline void fence_before_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A side's place in the ring.
struct Ring {
  uint32_t data, full, empty;  // addresses of slot 0 and of its barriers
  int slots, at = 0;
  uint32_t phase = 0;

  __device__ Ring(uint32_t data_, uint32_t barriers, int slots_)
      : data(data_), full(barriers), empty(barriers + 8 * slots_), slots(slots_) {}

  __device__ int index(int ahead) const {
    const int i = at + ahead;
    return i >= slots ? i - slots : i;
  }
  __device__ uint32_t parity(int ahead) const { return at + ahead >= slots ? phase ^ 1 : phase; }
  __device__ uint32_t slot(int ahead) const { return data + index(ahead) * kSlotBytes; }
  __device__ void advance(int count) {
    at += count;
    if (at < slots) return;
    at -= slots;
    phase ^= 1;
  }

  // For a warp that computes: waits until the next one or two slots are full (each lane: what a
  // copy wrote is there for who saw it end); frees them. A barrier takes 200 cycles to say that
  // there is nothing to wait for, so that both are asked before either answer is looked at.
  __device__ void await_full(int count, const Watch& watch) const {
    const bool first = barrier_passed(full + 8 * index(0), parity(0));
    const bool second = count < 2 || barrier_passed(full + 8 * index(1), parity(1));
    if (!first) barrier_wait(full + 8 * index(0), parity(0), watch);
    if (!second) barrier_wait(full + 8 * index(1), parity(1), watch);
  }
  __device__ void release(int count) {
    __syncwarp();
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    if (lane < count) barrier_arrive(empty + 8 * index(lane));
    advance(count);
  }

  // For the warp that copies: waits until the next slot is free.
  __device__ void await_empty(const Watch& watch) const {
    barrier_wait(empty + 8 * at, phase ^ 1, watch);
    __syncwarp();
  }
};

// The warp that copies, through the list of all that its block will compute with.
template <int kDim>
class Copier {
 public:
  __device__ Copier(const Step& step, Ring ring, const Watch& watch)
      : a(step), ring_(ring), watch_(watch), lane_(threadIdx.x % kWarp) {}

  // Eight rows of `width` columns, from `begin` on as many as fit a slot.
  __device__ void octet_part(const bf16* rows, int width, int begin) {
    const int columns = min(kSlotColumns, width - begin);
    ring_.await_empty(watch_);
    const uint32_t barrier = ring_.full + 8 * ring_.at, to = ring_.slot(0);
    if (lane_ == 0) barrier_expect(barrier, kOctet * columns * 2);
    __syncwarp();
    if (columns == width) {
      if (lane_ == 0) bulk_copy(to, rows, kOctet * columns * 2, barrier);
    } else if (lane_ < kOctet) {
      bulk_copy(to + lane_ * columns * 2, rows + int64_t{lane_} * width + begin, columns * 2,
                barrier);
    }
    ring_.advance(1);
  }
  __device__ void octets(const bf16* first, const bf16* second, int width) {
    const int parts = (width + kSlotColumns - 1) / kSlotColumns, each = second == nullptr ? 1 : 2;
#pragma unroll 1
    for (int i = 0; i < parts * each; ++i)
      octet_part(i % each == 0 ? first : second, width, i / each * kSlotColumns);
  }

  // The units of a list that are this block's, two octets at a time.
  __device__ void list(const List& list, int first) {
    const int stride = static_cast<int>(gridDim.x);
#pragma unroll 1
    for (int unit = first; unit < list.units; unit += list.pairs ? stride : 2 * stride) {
      const bf16* second = list.pairs                   ? list.other_of_pair(unit)
                           : unit + stride < list.units ? list.octet(unit + stride)
                                                        : nullptr;
      octets(list.octet(unit), second, list.width);
    }
  }

  // The pages of a share, without the row of this step, which whoever computes it adds.
  __device__ void share(const Layer& w, const Share& s) {
#pragma unroll 1
    for (int tile = 0; tile < s.tiles; tile += kTiles) tiles(w, s, tile);
  }

  static constexpr int kTileBytes = kTile * kDim * 2;           // of K, or of V
  static constexpr int kTiles = kSlotBytes / (2 * kTileBytes);  // of a slot
  static constexpr int kSlots = 1;

 private:
  __device__ void tiles(const Layer& w, const Share& s, int tile) {
    const bf16* from[kTiles];
    const bool is_v = lane_ >= kTile;
    int copies = 0;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int position = (s.first_tile + tile + i) * kTile + lane_ % kTile;
      const bool wanted = tile + i < s.tiles && position < s.context - 1;
      from[i] = wanted ? row_of(is_v ? w.cache_v : w.cache_k, s, position) : nullptr;
      copies += __popc(__ballot_sync(~0u, from[i] != nullptr));
    }
    ring_.await_empty(watch_);
    const uint32_t barrier = ring_.full + 8 * ring_.at;
    if (lane_ == 0) barrier_expect(barrier, copies * kDim * 2);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      if (from[i] != nullptr)
        bulk_copy(ring_.slot(0) + 2 * i * kTileBytes + lane_ * kDim * 2, from[i], kDim * 2,
                  barrier);
    ring_.advance(1);
  }
  __device__ const bf16* row_of(const bf16* cache, const Share& s, int position) const {
    const int entry = position / a.page_size;
    const int64_t page = a.table[s.row * a.table_width + entry], pages = a.pool / a.page_size;
    if (page < 0 || page >= pages) {
      report(a.bad, BadIndex::Of::attended_page, pages, page, entry);
      return nullptr;
    }
    return cache + ((page * a.page_size + position % a.page_size) * a.kv_heads + s.head) * kDim;
  }

  const Step& a;
  Ring ring_;
  const Watch& watch_;
  int lane_;
};

}  // namespace lockstep::persistent
