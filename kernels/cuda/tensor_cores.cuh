// Wrappers of PTX instructions: products of 16-bit matrices on tensor cores, asynchronous copies to
// shared memory. Source: NVIDIA, PTX ISA 8.0 (mma.sync, ldmatrix, cp.async).
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels/cuda/device.cuh"

namespace lockstep {

// out += a b in fp32 for a 16 x 16 and b 16 x 8. A lane holds of out the elements (lane / 4,
// 2 (lane % 4)), the next one, and those 8 rows further; of a pairs at the same places and 8
// columns further; of b the pairs (2 (lane % 4), lane / 4), and 8 rows further.
template <typename T>
__device__ void mma_m16n8k16(float (&out)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, __half>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(out[0]), "+f"(out[1]), "+f"(out[2]), "+f"(out[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(out[0]), "+f"(out[1]), "+f"(out[2]), "+f"(out[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads four 8 x 8 matrices, whose rows' addresses the lanes give, eight a matrix; as they lie, or
// transposed.
template <bool kTransposed>
__device__ inline void ldmatrix_x4(uint32_t (&to)[4], const void* row) {
  const uint32_t address = __cvta_generic_to_shared(row);
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

// Starts an asynchronous copy of 16 bytes into shared memory.
__device__ inline void cp_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from)
               : "memory");
}
// The same for data that is read once: it is evicted from the L2 cache first.
__device__ inline void cp_async_evict_first(void* to, const void* from) {
  asm volatile(
      "{ .reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, policy; }"
      :
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from)
      : "memory");
}
__device__ inline void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most the newest kGroups groups of copies are in flight.
template <int kGroups = 1>
__device__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Two numbers rounded to nearest even in one instruction, because one at a time is slow.
template <typename T>
__device__ uint32_t pack_pair(float low, float high) {
  uint32_t pair;
  if constexpr (std::is_same_v<T, __half>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
template <typename T>
__device__ float2 unpack_pair(uint32_t pair) {
  if constexpr (std::is_same_v<T, __half>) {
    __half2 both;
    memcpy(&both, &pair, sizeof(both));
    return __half22float2(both);
  } else {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  }
}

// Probabilities are never rounded to the dtype: each is the exact sum of up to kTerms numbers of
// it, to the last bit or two of fp32.
template <typename T>
constexpr int kTerms = std::is_same_v<T, __half> ? 2 : 3;

// The unit of probabilities that are split into terms: a power of two with which the second term of
// a small probability is not subnormal either, and 1 is still a number of the dtype.
template <typename T>
constexpr float kProbUnit = std::is_same_v<T, __half> ? 0x1p-15f : 1.0f;

// e^x for x <= 0, to two units in the last place; 0 where it would be subnormal.
__device__ inline float exp_nonpositive(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(__fmul_rn(x, 1.44269504f)));
  return y;
}

template <typename T>
__device__ void split(float low, float high, uint32_t (&terms)[kTerms<T>]) {
#pragma unroll
  for (int i = 0; i < kTerms<T>; ++i) {
    terms[i] = pack_pair<T>(low, high);
    const float2 wanted = unpack_pair<T>(terms[i]);
    low -= wanted.x;
    high -= wanted.y;
  }
}

}  // namespace lockstep
