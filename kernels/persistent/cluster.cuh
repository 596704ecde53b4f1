// How the blocks of a cluster hand numbers to each other: they are stored into the shared memory of
// whoever reads them, and a barrier there counts their bytes. Clusters add up what they have by
// words of global memory. Source: NVIDIA, PTX ISA 8.1 (st.async, mapa).
#pragma once

#include "kernels/persistent/block.cuh"

namespace lockstep::persistent {

// An address of this block's shared memory, as that of a block of the cluster.
__device__ inline uint32_t address_in(int block, uint32_t address) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
// Stores into another block; the barrier there, an address of this block's too, counts the bytes.
__device__ inline void store_in(int block, uint32_t to, uint32_t word, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                   address_in(block, to)),
               "r"(word), "r"(address_in(block, barrier))
               : "memory");
}
__device__ inline void store_in(int block, uint32_t to, uint2 words, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
          address_in(block, to)),
      "r"(words.x), "r"(words.y), "r"(address_in(block, barrier))
      : "memory");
}
__device__ inline void store_in(int block, uint32_t to, uint4 words, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(address_in(block, to)),
      "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w), "r"(address_in(block, barrier))
      : "memory");
}
__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

// Some warps of a block meet at a named barrier, or pass it by.
__device__ inline void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void pass_by(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// The same number, which the compiler can neither make anew at each use nor before a loop: both
// cost registers that the weights in flight need.
__device__ inline uint32_t kept(uint32_t x) {
  uint32_t same;
  asm volatile("mov.u32 %0, %1;" : "=r"(same) : "r"(x));
  return same;
}

// Whether a wait that has failed `spins` times is given up, as Watch has it; a patience of its own
// keeps no register between waits.
struct Patience {
  static constexpr int kSpins = 2048;
  uint64_t since = 0;
  __device__ bool ends(const Step& a, int spins, int layer) {
    return spins % kSpins == 0 && is_over(a, layer);
  }

 private:
  __device__ bool is_over(const Step& a, int layer) {
    if (load_word(&a.control->aborted) != 0) return true;
    const uint64_t now = nanoseconds();
    if (since == 0) since = now;
    if (now - since < Watch::kPatience) return false;
    report(a.bad, BadIndex::Of::step_wait, static_cast<int64_t>(Watch::kPatience / 1'000'000'000),
           layer, blockIdx.x);
    store_word(&a.control->aborted, 1);
    return true;
  }
};

__device__ inline void await_phase(const Step& a, uint32_t barrier, uint32_t parity, int layer) {
  Patience patience;
#pragma unroll 1
  for (int spins = 1; !barrier_passed(barrier, parity); ++spins)
    if (patience.ends(a, spins, layer)) return;
}

// The sums over kClusters, whose words lie kPitch apart, of two columns. The lowest bit of a word
// says in which of two turns it was written, and is no part of the number: a buffer serves every
// second layer, and is written anew when all have read it. Looks stand in the way of the weights:
// kPause ns between them, and less once some clusters' words are here, as the others' soon are.
template <int kClusters, int kPitch, unsigned kPause>
struct ClusterSums {
  static constexpr unsigned kSoon = 20;  // ns
  uint2 words[kClusters];
  float2 sum = {0, 0};

  __device__ ClusterSums(const Step& a, const uint32_t* from, uint32_t turn, int layer) {
    const auto is_here = [turn](const uint2& w) { return (w.x & 1) == turn && (w.y & 1) == turn; };
    const auto load = [&](int i) {
      asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                   : "=r"(words[i].x), "=r"(words[i].y)
                   : "l"(from + i * kPitch)
                   : "memory");
    };
#pragma unroll
    for (int i = 0; i < kClusters; ++i) load(i);
    Patience patience;
#pragma unroll 1
    for (int spins = 1;; ++spins) {
      bool all = true, some = false;
#pragma unroll
      for (int i = 0; i < kClusters; ++i) all &= is_here(words[i]), some |= is_here(words[i]);
      if (__all_sync(~0u, all)) break;
      __nanosleep(__any_sync(~0u, some) ? kSoon : kPause);
#pragma unroll
      for (int i = 0; i < kClusters; ++i)
        if (!is_here(words[i])) load(i);
      if (__any_sync(~0u, patience.ends(a, spins, layer))) break;
    }
#pragma unroll
    for (int i = 0; i < kClusters; ++i) {
      sum.x += __uint_as_float(words[i].x & ~1u);
      sum.y += __uint_as_float(words[i].y & ~1u);
    }
  }
};
__device__ inline uint32_t in_turn(float x, uint32_t turn) {
  return (__float_as_uint(x) & ~1u) | turn;
}

// Pairs of bf16 in a word.
__device__ inline float low_of(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_of(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
// In even lanes: this lane's value and the next one's.
__device__ inline uint32_t pair_of_lanes(float x) {
  return pack_pair<bf16>(x, __shfl_down_sync(~0u, x, 1));
}
// The words of four lanes, kStride apart.
template <int kStride>
__device__ uint4 words_of_lanes(uint32_t word, int first) {
  return {__shfl_sync(~0u, word, first), __shfl_sync(~0u, word, first + kStride),
          __shfl_sync(~0u, word, first + 2 * kStride), __shfl_sync(~0u, word, first + 3 * kStride)};
}

}  // namespace lockstep::persistent
