// How blocks hand numbers to each other within a launch: a number and a tag of its layer and step
// lie in one word, so that whoever finds the tag has the number, and nothing is reset. A word of
// bf16 has 16 bits of tag, a word of fp32 has 32. A buffer serves all layers: whoever writes it
// anew has read what depends on everybody having read it.
#pragma once

#include "kernels/persistent/step.cuh"

namespace lockstep::persistent {

__device__ inline uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
__device__ inline uint32_t load_word(const void* from) {
  uint32_t word;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}
__device__ inline unsigned long long load_pair(const void* from) {
  unsigned long long pair;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(pair) : "l"(from) : "memory");
  return pair;
}
__device__ inline uint4 load_words(const void* from) {
  uint4 words;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from)
               : "memory");
  return words;
}
// Weights: issued here, not where they are used.
__device__ inline bf16 load_early(const bf16* from) {
  unsigned short bits;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(bits) : "l"(from));
  return __ushort_as_bfloat16(bits);
}
__device__ inline void store_word(void* to, uint32_t word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
__device__ inline void store_pair(void* to, unsigned long long pair) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(pair) : "memory");
}

// The end of patience: a wait that was given up reports itself and ends the others, so that the
// launch ends with numbers that nobody may use.
struct Watch {
  static constexpr uint64_t kPatience = 10'000'000'000;  // ns
  static constexpr int kSpins = 2048;                    // between looks at the clock
  Control* control;
  BadIndex* bad;
  uint64_t deadline;

  __device__ explicit Watch(const Step& a)
      : control(a.control), bad(a.bad), deadline(nanoseconds() + kPatience) {}

  // Whether the wait, which has failed `spins` times, is to be given up.
  __device__ bool gives_up(int spins, int layer) const {
    return spins % kSpins == 0 && ends(layer);
  }

 private:
  // Apart, since it is seldom called and often inlined otherwise.
  __device__ __noinline__ bool ends(int layer) const {
    if (load_word(&control->aborted) != 0) return true;
    if (nanoseconds() < deadline) return false;
    report(bad, BadIndex::Of::step_wait, static_cast<int64_t>(kPatience / 1'000'000'000), layer,
           blockIdx.x);
    store_word(&control->aborted, 1);
    return true;
  }
};

// By the last to end: reports a wait that was given up once more. A warp that copies ahead may give
// up after its launch has ended, and nobody looks then before the next one, whose waits it ends.
__device__ inline void report_abort(const Step& a) {
  if (load_word(&a.control->aborted) != 0)
    report(a.bad, BadIndex::Of::step_wait, static_cast<int64_t>(Watch::kPatience / 1'000'000'000),
           a.layers - 1, blockIdx.x);
}

// A step's tags by layer.
struct Tags {
  uint32_t epoch;
  __device__ uint32_t of(int layer) const { return epoch + layer + 1; }
};

__device__ inline uint32_t tagged(bf16 number, uint32_t tag) {
  return uint32_t{__bfloat16_as_ushort(number)} << 16 | (tag & 0xffff);
}
__device__ inline float number_in(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }
__device__ inline bf16 bits_in(uint32_t word) {
  return __ushort_as_bfloat16(static_cast<unsigned short>(word >> 16));
}
__device__ inline bool has_tag(uint32_t word, uint32_t tag) { return ((word ^ tag) & 0xffff) == 0; }

__device__ inline uint32_t await_word(const uint32_t* from, uint32_t tag, const Watch& watch,
                                      int layer) {
  uint32_t word = load_word(from);
  for (int spins = 1; !has_tag(word, tag) && !watch.gives_up(spins, layer); ++spins)
    word = load_word(from);
  return word;
}

// A word of each kWarp from the first on.
template <int kCount>
__device__ void await_each(uint32_t (&words)[kCount], const uint32_t* from, uint32_t tag,
                           const Watch& watch, int layer) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) words[i] = load_word(from + i * kWarp);
  for (int spins = 1;; ++spins) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (has_tag(words[i], tag)) continue;
      words[i] = load_word(from + i * kWarp);
      all = false;
    }
    if (all || watch.gives_up(spins, layer)) return;
  }
}

// kCount times four words, `stride` words apart; those that are there are not read again.
template <int kCount>
__device__ void await_words(uint4 (&words)[kCount], const uint32_t* from, int stride, int count,
                            uint32_t tag, const Watch& watch, int layer) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    if (i < count) words[i] = load_words(from + i * stride);
  for (int spins = 1;; ++spins) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i >= count) continue;
      const uint4 w = words[i];
      if ((((w.x ^ tag) | (w.y ^ tag) | (w.z ^ tag) | (w.w ^ tag)) & 0xffff) == 0) continue;
      words[i] = load_words(from + i * stride);
      all = false;
    }
    if (all || watch.gives_up(spins, layer)) return;
  }
}

// A sum of a share of positions, on its way to who adds the shares.
__device__ inline unsigned long long tagged(float number, uint32_t tag) {
  return static_cast<unsigned long long>(tag) << 32 | __float_as_uint(number);
}
__device__ inline float number_in(unsigned long long pair) {
  return __uint_as_float(static_cast<uint32_t>(pair));
}
__device__ inline bool has_tag(unsigned long long pair, uint32_t tag) { return pair >> 32 == tag; }

// A token and its logit as one number, in the order of argmax: a NaN is larger than any number,
// zeros are alike, of equal ones the first is the largest.
__device__ inline unsigned long long key_of(float logit, int token) {
  const uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);
  const uint32_t ordered = isnan(logit) ? ~0u : bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(ordered) << 32 | ~static_cast<uint32_t>(token);
}

}  // namespace lockstep::persistent
