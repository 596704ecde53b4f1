// The numbers of a digest, as threads and warps make them of the words that they read: shared by
// the kernels of digest.cu and digest_meanwhile.cu.
#pragma once

#include "kernels/cuda/digest_input.cuh"

namespace lockstep::digests {

__device__ inline double warp_sum_64(double x) {
  for (int other = kWarp / 2; other > 0; other /= 2) x += __shfl_xor_sync(~0u, x, other);
  return x;
}

__device__ inline bool larger(double a, int64_t a_at, double b, int64_t b_at) {
  if (a_at < 0 || b_at < 0) return a_at >= 0;
  return a == b ? a_at < b_at : a > b;
}

// `a` becomes what both add, m2 apart, which needs the mean of both.
__device__ inline void add(Part& a, const Part& b) {
  if (b.at >= 0) {
    a.min = a.at < 0 ? b.min : min(a.min, b.min);
    a.max = a.at < 0 ? b.max : max(a.max, b.max);
  }
  if (larger(b.absmax, b.at, a.absmax, a.at)) a.absmax = b.absmax, a.at = b.at;
  a.sum += b.sum, a.sum_abs += b.sum_abs, a.sum_squares += b.sum_squares;
  a.finite += b.finite, a.nan += b.nan, a.pos_inf += b.pos_inf, a.neg_inf += b.neg_inf;
  a.zeros += b.zeros, a.subnormals += b.subnormals;
}

// All of the warp's, for its first lane, in an order that is always the same. Short code, as what
// is done once a block should be: a small tensor takes as long as its instructions take to arrive.
__device__ __noinline__ inline Part warp_total(Part part) {
#pragma unroll 1
  for (int down = kWarp / 2; down > 0; down /= 2) {
    Part other;
    auto* to = reinterpret_cast<uint32_t*>(&other);
    const auto* from = reinterpret_cast<const uint32_t*>(&part);
#pragma unroll
    for (int i = 0; i < int{sizeof(Part) / 4}; ++i) to[i] = __shfl_down_sync(~0u, from[i], down);
    add(part, other);
  }
  return part;
}

// A thread's words of one block.
struct Words {
  int64_t begin;  // of the block, in the tensor's bytes
  int place;      // of the first word in the block; each next one is a warp's words further
  bool whole;     // all of them are the tensor's
  uint64_t words[4];

  __device__ Words(Input input, const xxh3::Warp& warp, int64_t block)
      : begin(block * xxh3::kBlock), place(warp.place(0)) {
    const char* run = input.run(begin);
    whole = run != nullptr;
    for (int i = 0; i < 4; ++i)
      words[i] =
          whole ? *reinterpret_cast<const uint64_t*>(run + warp.place(i)) : input.tail(at(i));
  }
  // The same of words in shared memory: those of the block.
  __device__ Words(const uint64_t* from, Input input, int64_t block)
      : begin(block * xxh3::kBlock),
        place(static_cast<int>(threadIdx.x) % kWarp * 8),
        whole(begin + xxh3::kBlock <= input.size()) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = from[place / 8 + i * kWarp];
  }
  __device__ int64_t at(int i) const { return begin + place + i * kWarp * 8; }
};

// The statistics of the elements that a thread has seen so far. Exponents are counted in shared
// memory, [256, kColumns]: elements of a tensor have few, and lanes that add to one word wait for
// each other.
template <typename E, int kColumns>
struct Seen {
  uint32_t* counts;  // the column of this lane
  Part part = {.at = -1};
  typename E::Wide least = INFINITY, most = -INFINITY, largest = -1;
  // 1, which the compiler does not know: for that it has an instruction that counts lanes with the
  // same address, and here few are.
  uint32_t one = min(blockDim.x, 1u);

  __device__ explicit Seen(uint32_t* exponents)
      : counts(exponents + threadIdx.x % kWarp % kColumns) {}

  // Those from byte `size` on are none of the tensor's.
  __device__ void look_at(const Words& in, int64_t size, typename E::Wide tiny) {
    if (E::kCount <= 4 && in.whole && all_normal(in, tiny)) return look_at_normal(in);
#pragma unroll 1
    for (int w = 0; w < 4; ++w) {
#pragma unroll 1
      for (int i = 0; i < E::kCount; ++i) {
        const int64_t at = in.at(w) + i * kBytes;
        if (at < size) look_at(E::wide(in.words[w], i), at / kBytes, tiny);
      }
    }
  }

  // Nearly all numbers are normal, with nothing to count but their exponents.
  __device__ static bool all_normal(const Words& in, typename E::Wide tiny) {
    bool normal = true;
#pragma unroll
    for (int w = 0; w < 4; ++w)
#pragma unroll
      for (int i = 0; i < E::kCount; ++i) {
        const typename E::Wide x = E::wide(in.words[w], i), magnitude = x < 0 ? -x : x;
        normal &= magnitude >= tiny && isfinite(x);
      }
    return normal;
  }
  __device__ void look_at_normal(const Words& in) {
    int best = -1;  // of the elements, that is larger than any before
#pragma unroll
    for (int w = 0; w < 4; ++w)
#pragma unroll
      for (int i = 0; i < E::kCount; ++i) {
        const typename E::Wide x = E::wide(in.words[w], i), magnitude = x < 0 ? -x : x;
        count_exponent(x);
        least = min(least, x), most = max(most, x);
        if (magnitude > largest) largest = magnitude, best = w * E::kCount + i;
        add_to_sums(x);
      }
    part.finite += 4 * E::kCount;
    if (best >= 0) part.at = in.at(best / E::kCount) / kBytes + best % E::kCount;
  }

  __device__ void look_at(typename E::Wide x, int64_t at, typename E::Wide tiny) {
    const typename E::Wide magnitude = x < 0 ? -x : x;
    count_exponent(x);
    if (!isfinite(x)) {
      part.nan += isnan(x), part.pos_inf += x > 0, part.neg_inf += x < 0;
      return;
    }
    least = min(least, x), most = max(most, x);
    if (magnitude > largest) largest = magnitude, part.at = at;
    ++part.finite, part.zeros += x == 0, part.subnormals += x != 0 && magnitude < tiny;
    add_to_sums(x);
  }

  __device__ void count_exponent(typename E::Wide x) {
    atomicAdd(&counts[exponent_bin(x) * kColumns], one);
  }
  __device__ void add_to_sums(double x) {
    part.sum += x, part.sum_abs += fabs(x), part.sum_squares += x * x;
  }

  static constexpr int kBytes = 8 / E::kCount;  // of an element

  __device__ Part total() {
    part.min = least, part.max = most, part.absmax = largest;
    return warp_total(part);
  }
};

// The sum of (x - mean)^2 over a thread's words.
template <typename E>
__device__ double deviation(const Words& in, int64_t size, double mean) {
  double m2 = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
#pragma unroll(E::kCount > 4 ? 1 : E::kCount)
    for (int i = 0; i < E::kCount; ++i) {
      const typename E::Wide x = E::wide(in.words[w], i);
      if ((!in.whole && in.at(w) + i * (8 / E::kCount) >= size) || !isfinite(x)) continue;
      m2 += (x - mean) * (x - mean);
    }
  }
  return m2;
}

// The share of a part in the sum of (x - mean)^2.
__device__ inline double deviation_of(const Part& part, double mean) {
  if (part.finite == 0) return 0;
  const double delta = part.sum / part.finite - mean;
  return part.m2 + part.finite * delta * delta;
}

// Calls use(Element, kTiny) for a dtype, whose smallest normal number kTiny is.
template <typename Use>
__device__ void with_element(DType dtype, Use use) {
  switch (dtype) {
    case DType::bf16:
      return use(Element<__nv_bfloat16, float>{}, 0x1p-126f);
    case DType::f16:
      return use(Element<__half, float>{}, 0x1p-14f);
    case DType::f32:
      return use(Element<float, float>{}, 0x1p-126f);
    case DType::f64:
      return use(Element<double, double>{}, 0x1p-1022);
    // Zero is the only whole number below 1, and it counts as zero.
    case DType::i32:
      return use(Element<int32_t, double>{}, 1.0);
    case DType::i64:
      return use(Element<int64_t, double>{}, 1.0);
    case DType::u8:
      return use(Element<uint8_t, float>{}, 1.0f);
  }
}

__device__ inline double mean_of(const Part& all) {
  return all.finite > 0 ? all.sum / all.finite : 0;
}

// All of a digest but its hash, count and exponents.
__device__ inline void put_numbers(Digest& out, const Part& all, double mean, double m2) {
  out.nan = all.nan, out.pos_inf = all.pos_inf, out.neg_inf = all.neg_inf;
  out.zeros = all.zeros, out.subnormals = all.subnormals;
  out.min = all.min, out.max = all.max, out.absmax = all.absmax, out.absmax_index = all.at;
  out.mean = mean, out.m2 = m2, out.sum_abs = all.sum_abs, out.sum_squares = all.sum_squares;
}

// By one warp: the same, of tensors whose parts are all there.
__device__ inline Part fetched(const Part* from) {
  Part part;
  auto* to = reinterpret_cast<uint64_t*>(&part);
  for (int i = 0; i < int{sizeof(Part) / 8}; ++i)
    to[i] = __ldcg(reinterpret_cast<const unsigned long long*>(from) + i);
  return part;
}
__device__ inline void put_numbers(Digest& out, const Part* parts, int64_t count) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  Part all = {};
  all.at = -1;
  for (int64_t i = lane; i < count; i += kWarp) add(all, fetched(&parts[i]));
  if (count > 1) all = warp_total(all);
  const double mean = __shfl_sync(~0u, mean_of(all), 0);
  double m2 = 0;
  for (int64_t i = lane; i < count; i += kWarp) m2 += deviation_of(fetched(&parts[i]), mean);
  m2 = warp_sum_64(m2);
  if (lane == 0) put_numbers(out, all, mean, m2);
}

}  // namespace lockstep::digests
