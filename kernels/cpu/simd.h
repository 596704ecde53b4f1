// One source for AVX-512, AVX2 and plain x86-64: kernels are written over vectors of N floats, and
// `on_best_isa` runs the widest instance that this CPU has. A kernel is a class whose
// `template <int N> void operator()() const` is always inlined, as is all that it calls, so that it
// is compiled with the instructions of the instance. A kernel's bits depend on the instance, never
// on how many rows it is given.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/base/dtype.h"

// Vectors are passed between inlined functions only: there is no ABI to be changed.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep {

enum class Isa : uint8_t { generic, avx2, avx512 };
Isa best_isa();  // the most this CPU has, within the limit
// From now on no more than `most` is used: how tests run every instance on one machine.
void limit_isa(Isa most);

template <typename Kernel>
#ifdef __clang__  // which ignores the whole of an attribute that has a word it does not know
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]] void
#else
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")]] void
#endif
on_avx512(Kernel kernel) {
  kernel.template operator()<16>();
}
template <typename Kernel>
[[gnu::target("avx2,fma")]] void on_avx2(Kernel kernel) {
  kernel.template operator()<8>();
}
template <typename Kernel>
void on_best_isa(Kernel kernel) {
  const Isa isa = best_isa();
  if (isa == Isa::avx512)
    on_avx512(kernel);
  else if (isa == Isa::avx2)
    on_avx2(kernel);
  else
    kernel.template operator()<4>();
}

namespace simd {

inline constexpr int64_t kWidest = 16;  // lanes of the widest instance

template <int N>
struct Types {
  typedef float F __attribute__((vector_size(N * 4)));
  typedef uint32_t U __attribute__((vector_size(N * 4)));
  typedef uint16_t H __attribute__((vector_size(N * 2)));
};
template <int N>
using F = typename Types<N>::F;
template <int N>
using U = typename Types<N>::U;
template <int N>
using H = typename Types<N>::H;

template <int N>
[[gnu::always_inline]] inline F<N> all(float x) {
  return x - F<N>{};  // not x + 0, which would turn -0 into +0
}

// Loads may be unaligned: weights in a mapped file are aligned to their dtype alone.
template <int N>
[[gnu::always_inline]] inline F<N> load(const float* p) {
  F<N> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <int N>
[[gnu::always_inline]] inline F<N> load(const BFloat16* p) {
  H<N> bits;
  std::memcpy(&bits, p, sizeof bits);
  return reinterpret_cast<F<N>>(__builtin_convertvector(bits, U<N>) << 16);
}

template <int N>
[[gnu::always_inline]] inline F<N> load(const Float16* p) {
  H<N> bits;
  std::memcpy(&bits, p, sizeof bits);
  const U<N> wide = __builtin_convertvector(bits, U<N>);
  const U<N> magnitude = (wide & 0x7fffu) << 13;
  // The scheme of to_float: 2^112 moves the bias and normalises subnormals; Inf and NaN keep all
  // ones.
  const U<N> scaled = reinterpret_cast<U<N>>(reinterpret_cast<F<N>>(magnitude) * 0x1p112f);
  const U<N> special = magnitude | 0x7f800000u;
  const U<N> value = magnitude >= (0x7c00u << 13) ? special : scaled;
  return reinterpret_cast<F<N>>(value | ((wide & 0x8000u) << 16));
}

// The first n <= N elements; zeros behind them.
template <int N, typename T>
[[gnu::always_inline]] inline F<N> load(const T* p, int64_t n) {
  if (n >= N) return load<N>(p);
  T some[N] = {};
  std::memcpy(static_cast<void*>(some), p, n * sizeof(T));
  return load<N>(some);
}

template <int N>
[[gnu::always_inline]] inline void store(float* p, F<N> v) {
  std::memcpy(static_cast<void*>(p), &v, sizeof v);
}

template <int N>
[[gnu::always_inline]] inline void store(BFloat16* p, F<N> v) {
  const U<N> bits = reinterpret_cast<U<N>>(v);
  const U<N> rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const U<N> quiet = (bits >> 16) | 0x40u;
  const H<N> out = __builtin_convertvector(v != v ? quiet : rounded, H<N>);
  std::memcpy(static_cast<void*>(p), &out, sizeof out);
}

template <int N>
[[gnu::always_inline]] inline void store(Float16* p, F<N> v) {
  const U<N> bits = reinterpret_cast<U<N>>(v);
  const U<N> m = bits & 0x7fffffffu;
  const F<N> magnitude = reinterpret_cast<F<N>>(m);
  // The scheme of from_float<Float16>.
  const U<N> normal = (m + 0xfffu + ((m >> 13) & 1u) - (112u << 23)) >> 13;
  const U<N> subnormal = reinterpret_cast<U<N>>(magnitude + 0.5f) - 0x3f000000u;
  const U<N> infinite = U<N>{} + 0x7c00u;
  const U<N> nan = U<N>{} + 0x7e00u;
  U<N> out = magnitude < 0x1p-14f ? subnormal : normal;
  out = magnitude >= 65520.0f ? infinite : out;
  out = (v != v ? nan : out) | ((bits >> 16) & 0x8000u);
  const H<N> narrow = __builtin_convertvector(out, H<N>);
  std::memcpy(static_cast<void*>(p), &narrow, sizeof narrow);
}

// Writes the first n <= N elements and nothing behind them.
template <int N, typename T>
[[gnu::always_inline]] inline void store(T* p, F<N> v, int64_t n) {
  if (n >= N) return store<N>(p, v);
  T some[N];
  store<N>(some, v);
  std::memcpy(static_cast<void*>(p), some, n * sizeof(T));
}

// The sum of all lanes, halves first.
template <int N>
[[gnu::always_inline]] inline float sum(F<N> v) {
  if constexpr (N == 4) {
    return (v[0] + v[2]) + (v[1] + v[3]);
  } else if constexpr (N == 8) {
    return sum<4>(__builtin_shufflevector(v, v, 0, 1, 2, 3) +
                  __builtin_shufflevector(v, v, 4, 5, 6, 7));
  } else {
    return sum<8>(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                  __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  }
}

// Lane i is sum(v[i]), bit for bit, with a third of its instructions. Overwrites v.
template <int N>
[[gnu::always_inline]] inline F<N> sum_each(F<N>* v) {
  // Each round folds what is left of two vectors, halves first, into one.
  if constexpr (N == 16) {
    for (int i = 0; i < 8; ++i)
      v[i] = __builtin_shufflevector(v[i], v[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21,
                                     22, 23) +
             __builtin_shufflevector(v[i], v[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27,
                                     28, 29, 30, 31);
    for (int i = 0; i < 4; ++i)
      v[i] = __builtin_shufflevector(v[i], v[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24,
                                     25, 26, 27) +
             __builtin_shufflevector(v[i], v[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28,
                                     29, 30, 31);
    for (int i = 0; i < 2; ++i)
      v[i] = __builtin_shufflevector(v[i], v[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12,
                                     13, 28, 29) +
             __builtin_shufflevector(v[i], v[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14,
                                     15, 30, 31);
    return __builtin_shufflevector(v[0], v[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28,
                                   14, 30) +
           __builtin_shufflevector(v[0], v[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29,
                                   15, 31);
  } else {
    F<N> sums;
    for (int i = 0; i < N; ++i) sums[i] = sum<N>(v[i]);
    return sums;
  }
}

// e^x within 2 ulp (tested over every exponent): e^x = 2^n e^r with n = round(x / ln 2), so that
// |r| <= ln 2 / 2, where eight terms of the series are enough. Overflows to Inf, underflows
// gradually, keeps NaN.
template <int N>
[[gnu::always_inline]] inline F<N> exp(F<N> x) {
  const F<N> low = all<N>(-105.0f), high = all<N>(90.0f);
  x = x < low ? low : x;
  x = x > high ? high : x;
  const F<N> magic = all<N>(0x1.8p23f);  // adding it leaves the nearest integer in the low bits
  const F<N> shifted = x * 0x1.715476p0f + magic;
  const F<N> n = shifted - magic;
  const F<N> r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;  // ln 2 in two parts
  F<N> p = r * (1.0f / 5040) + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors, because n reaches beyond the exponents of normal numbers.
  typedef int32_t I __attribute__((vector_size(N * 4)));
  const I whole = reinterpret_cast<I>(shifted) - reinterpret_cast<I>(magic);
  const I half = whole >> 1;
  const F<N> first = reinterpret_cast<F<N>>((half + 127) << 23);
  const F<N> second = reinterpret_cast<F<N>>((whole - half + 127) << 23);
  return p * first * second;
}

}  // namespace simd
}  // namespace lockstep
