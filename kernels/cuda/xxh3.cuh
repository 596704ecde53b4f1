// XXH3-64 (github.com/Cyan4973/xxHash, seed 0, the default secret) on a device. Of an input of more
// than 240 bytes, 8 accumulators take up stripes of 64 bytes; after each block of 16 stripes they
// are scrambled. What a block adds to them is a sum, which any number of threads can make in any
// order: only the scrambles follow each other.
#pragma once

#include "kernels/cuda/device.cuh"

namespace lockstep::xxh3 {

constexpr int64_t kShort = 240;   // bytes, up to which one thread hashes
constexpr int64_t kStripe = 64;   // bytes
constexpr int64_t kBlock = 1024;  // bytes
constexpr uint64_t kPrime32_1 = 0x9E3779B1u;
constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87ull;

// XXH3_kSecret, its 192 bytes as words.
__device__ const uint64_t kSecret[24] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
    0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
    0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
    0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
    0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af};

// The accumulators at the start.
__device__ const uint64_t kStart[8] = {
    0xC2B2AE3Du,           kPrime64_1,  0xC2B2AE3D27D4EB4Full, 0x165667B19E3779F9ull,
    0x85EBCA77C2B2AE63ull, 0x85EBCA77u, 0x27D4EB2F165667C5ull, kPrime32_1};

// 8 bytes of the secret from that byte on.
__device__ inline uint64_t secret(int64_t at) {
  const int shift = static_cast<int>(at % 8) * 8;
  const uint64_t low = kSecret[at / 8];
  return shift == 0 ? low : low >> shift | kSecret[at / 8 + 1] << (64 - shift);
}

__device__ inline uint64_t fold(uint64_t a, uint64_t b) { return a * b ^ __umul64hi(a, b); }

__device__ inline uint64_t avalanche(uint64_t h) {
  h = (h ^ h >> 37) * 0x165667919E3779F9ull;
  return h ^ h >> 32;
}

// XXH64's.
__device__ inline uint64_t old_avalanche(uint64_t h) {
  h = (h ^ h >> 33) * 0xC2B2AE3D27D4EB4Full;
  h = (h ^ h >> 29) * 0x165667B19E3779F9ull;
  return h ^ h >> 32;
}

__device__ inline uint64_t swap_bytes(uint64_t x) {
  const auto low = static_cast<uint32_t>(x), high = static_cast<uint32_t>(x >> 32);
  return uint64_t{__byte_perm(low, 0, 0x0123)} << 32 | __byte_perm(high, 0, 0x0123);
}

// Up to 8 bytes of an input. Seldom: of what is not aligned, and at ends.
template <typename Input>
__device__ __noinline__ uint64_t assembled(Input input, int64_t at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= input.byte(at + i) << 8 * i;
  return value;
}

template <typename Input>
__device__ uint64_t hash_to_16(Input input, int64_t begin, int64_t size) {
  const int64_t end = begin + size;
  if (size == 0) return old_avalanche(secret(56) ^ secret(64));
  if (size < 4) {
    const uint64_t mixed = input.byte(begin) << 16 | input.byte(begin + size / 2) << 24 |
                           input.byte(end - 1) | static_cast<uint64_t>(size) << 8;
    return old_avalanche(mixed ^ ((secret(0) ^ secret(0) >> 32) & 0xffffffff));
  }
  if (size <= 8) {
    uint64_t h = (input.half(end - 4) + (input.half(begin) << 32)) ^ secret(8) ^ secret(16);
    h ^= (h << 49 | h >> 15) ^ (h << 24 | h >> 40);
    h *= 0x9FB21C651E98DF25ull;
    h = (h ^ ((h >> 35) + static_cast<uint64_t>(size))) * 0x9FB21C651E98DF25ull;
    return h ^ h >> 28;
  }
  const uint64_t low = input.word(begin) ^ secret(24) ^ secret(32);
  const uint64_t high = input.word(end - 8) ^ secret(40) ^ secret(48);
  return avalanche(static_cast<uint64_t>(size) + swap_bytes(low) + high + fold(low, high));
}

// The hash of at most kShort bytes, by the calling thread alone.
template <typename Input>
__device__ __noinline__ uint64_t hash_short(Input input, int64_t begin, int64_t size) {
  if (size <= 16) return hash_to_16(input, begin, size);
  const auto mix = [&](int64_t at, int64_t key) {
    return fold(input.word(begin + at) ^ secret(key), input.word(begin + at + 8) ^ secret(key + 8));
  };
  uint64_t sum = static_cast<uint64_t>(size) * kPrime64_1;
  if (size <= 128) {
    for (int64_t i = (size - 1) / 32; i >= 0; --i)
      sum += mix(16 * i, 32 * i) + mix(size - 16 * (i + 1), 32 * i + 16);
    return avalanche(sum);
  }
  for (int64_t i = 0; i < 8; ++i) sum += mix(16 * i, 16 * i);
  sum = avalanche(sum);
  for (int64_t i = 8; i < size / 16; ++i) sum += mix(16 * i, 16 * (i - 8) + 3);
  return avalanche(sum + mix(size - 16, 136 - 17));
}

__device__ inline uint64_t product(uint64_t keyed) {
  return uint64_t{static_cast<uint32_t>(keyed)} * (keyed >> 32);
}

// The 32 lanes of a warp at work on one input of more than kShort bytes; lane l has accumulator
// l % 8, all four lanes of an accumulator the same.
class Warp {
 public:
  static constexpr int kWords = 4;  // of a block, for each lane

  __device__ Warp() : lane_(threadIdx.x % kWarp), own_(lane_ % 8) {
    for (int i = 0; i < kWords; ++i) keys_[i] = kSecret[lane_ / 8 + own_ + 4 * i];
    scramble_ = kSecret[16 + own_];
  }

  // Where word i of this lane stands in its block, in bytes.
  __device__ int64_t place(int i) const { return (lane_ + kWarp * i) * 8; }

  // The sum that the first `stripes` stripes of a block add to this lane's accumulator.
  __device__ uint64_t sum(const uint64_t (&words)[kWords], int stripes) const {
    uint64_t products = 0, plain = 0;
    for (int i = 0; i < kWords; ++i) {
      if (lane_ / 8 + 4 * i >= stripes) continue;
      products += product(words[i] ^ keys_[i]);
      plain += words[i];
    }
    products += __shfl_xor_sync(~0u, plain, 1);
    for (int other = 8; other < kWarp; other *= 2)
      products += __shfl_xor_sync(~0u, products, other);
    return products;
  }

  __device__ uint64_t start() const { return kStart[own_]; }
  __device__ uint64_t scrambled(uint64_t accumulator) const {
    return (accumulator ^ accumulator >> 47 ^ scramble_) * kPrime32_1;
  }

  // scrambled(accumulator) + sum, in the fewest steps that follow each other: one for a whole input
  // is as long as it has blocks.
  __device__ uint64_t scrambled(uint64_t accumulator, uint64_t sum) const {
    const uint32_t low = accumulator;
    const uint32_t high = accumulator >> 32;
    const uint32_t keyed_low = low ^ high >> 15 ^ static_cast<uint32_t>(scramble_);
    const uint32_t keyed_high = high ^ static_cast<uint32_t>(scramble_ >> 32);
    constexpr uint32_t kPrime = kPrime32_1;
    const uint32_t sum_high = static_cast<uint32_t>(sum >> 32) + keyed_high * kPrime;
    return uint64_t{keyed_low} * kPrime + (uint64_t{sum_high} << 32 | static_cast<uint32_t>(sum));
  }

  // The hash, for all lanes: `accumulator` has all blocks but the last scrambled in, and the
  // last one's stripes; `last` is this lane's word of the last 64 bytes.
  __device__ uint64_t finish(uint64_t accumulator, uint64_t last, int64_t size) const {
    accumulator += product(last ^ secret(121 + 8 * own_)) + __shfl_xor_sync(~0u, last, 1);
    const uint64_t keyed = accumulator ^ secret(11 + 8 * own_);
    const uint64_t folded = fold(keyed, __shfl_xor_sync(~0u, keyed, 1));
    uint64_t mixed = own_ % 2 == 0 ? folded : 0;  // a pair counts once
    for (int other = 1; other < 8; other *= 2) mixed += __shfl_xor_sync(~0u, mixed, other);
    return avalanche(static_cast<uint64_t>(size) * kPrime64_1 + mixed);
  }

  __device__ int own() const { return own_; }

 private:
  int lane_, own_;
  uint64_t keys_[kWords], scramble_;
};

// Groups of kLanes lanes at work on an input each, all of the same size: more than kShort bytes, a
// multiple of kStripe. A lane has two accumulators that lie side by side, for every other stripe.
class Groups {
 public:
  static constexpr int kLanes = 8, kWords = 24;

  // `secret` is kWords words of the block's shared memory, for registers are wanted for what is
  // read ahead; all threads of the block make theirs at once.
  __device__ explicit Groups(uint64_t* secret) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    pair_ = lane % 4, odd_ = lane / 4, secret_ = secret, keys_ = secret + odd_ + 2 * pair_;
    if (threadIdx.x < kWords) secret[threadIdx.x] = kSecret[threadIdx.x];
    __syncthreads();
  }

  // The hash, for all lanes of the group. stripe(i) is where stripe i of the group's input lies,
  // aligned to 16 bytes.
  template <typename Stripe>
  __device__ uint64_t hash(int stripes, Stripe stripe) const {
    const ulonglong2 last = words_of(stripe(stripes - 1));
    uint64_t low = kStart[2 * pair_], high = kStart[2 * pair_ + 1];
    for (int first = 0; first < stripes; first += kStripes) {
      const int left = stripes - 1 - first;  // without the last one, which has keys of its own
      uint64_t to_low = 0, to_high = 0;
#pragma unroll 1
      for (int begin = 0; begin < kStripes; begin += 2 * kAhead) {
        const int mine = begin + odd_;
        ulonglong2 words[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
          if (mine + 2 * i < left) words[i] = words_of(stripe(first + mine + 2 * i));
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (mine + 2 * i >= left) continue;
          to_low += product(words[i].x ^ keys_[begin + 2 * i]) + words[i].y;
          to_high += product(words[i].y ^ keys_[begin + 2 * i + 1]) + words[i].x;
        }
      }
      low += to_low + __shfl_xor_sync(~0u, to_low, 4);
      high += to_high + __shfl_xor_sync(~0u, to_high, 4);
      if (left >= kStripes) low = scrambled(low, 0), high = scrambled(high, 1);
    }
    const int at = 16 * pair_;
    low += product(last.x ^ key(121 + at)) + last.y;
    high += product(last.y ^ key(129 + at)) + last.x;
    uint64_t mixed = fold(low ^ key(11 + at), high ^ key(19 + at));
    for (int other = 1; other < 4; other *= 2) mixed += __shfl_xor_sync(~0u, mixed, other);
    return avalanche(static_cast<uint64_t>(stripes) * kStripe * kPrime64_1 + mixed);
  }

 private:
  static constexpr int kStripes = kBlock / kStripe;
  static constexpr int kAhead = 8;  // words that a lane reads at once, two at a time

  // Nothing reads them again soon.
  __device__ ulonglong2 words_of(const char* stripe) const {
    return __ldcs(reinterpret_cast<const ulonglong2*>(stripe) + pair_);
  }
  __device__ uint64_t scrambled(uint64_t accumulator, int i) const {
    return (accumulator ^ accumulator >> 47 ^ keys_[16 - odd_ + i]) * kPrime32_1;
  }

  // 8 bytes of the secret from that byte on, which is no multiple of 8.
  __device__ uint64_t key(int at) const {
    return secret_[at / 8] >> at % 8 * 8 | secret_[at / 8 + 1] << (64 - at % 8 * 8);
  }

  int pair_, odd_;
  // Volatile, so that they are read when they are wanted and take no registers till then.
  const volatile uint64_t *secret_, *keys_;  // keys of the lane's first stripe
};

// Blocks that are scrambled in; the last one, of 1 to kBlock bytes, is not.
__device__ inline int64_t full_blocks(int64_t size) { return (size - 1) / kBlock; }
// Stripes of the last block; the last 64 bytes of the input are one more.
__device__ inline int last_stripes(int64_t size) { return (size - 1) % kBlock / kStripe; }

// The whole hash by one warp, for all its lanes.
template <typename Input>
__device__ uint64_t hash(Input input, int64_t begin, int64_t size) {
  if (size <= kShort) return hash_short(input, begin, size);
  const Warp warp;
  uint64_t accumulator = warp.start(), words[Warp::kWords], next[Warp::kWords];
  const int64_t blocks = full_blocks(size);
  const auto fetch = [&](int64_t block) {
    const bool whole = (block + 1) * kBlock <= size;
    if (const char* run = whole ? input.run(begin + block * kBlock) : nullptr) {
      for (int i = 0; i < Warp::kWords; ++i)
        next[i] = *reinterpret_cast<const uint64_t*>(run + warp.place(i));
      return;
    }
    for (int i = 0; i < Warp::kWords; ++i) {
      const int64_t at = block * kBlock + warp.place(i);
      next[i] = at + 8 <= size ? input.word(begin + at) : 0;
    }
  };
  fetch(0);
  for (int64_t b = 0; b <= blocks; ++b) {
    for (int i = 0; i < Warp::kWords; ++i) words[i] = next[i];
    if (b < blocks) fetch(b + 1);  // while this one is summed up
    accumulator += warp.sum(words, b < blocks ? 16 : last_stripes(size));
    if (b < blocks) accumulator = warp.scrambled(accumulator);
  }
  const uint64_t last = input.word(begin + size - kStripe + 8 * warp.own());
  return warp.finish(accumulator, last, size);
}

}  // namespace lockstep::xxh3
