// Warpgroup instructions of capability 9.0: asynchronous products of 16-bit matrices (wgmma),
// mbarriers, register reallocation. A warpgroup is four warps, the first of which has a number that
// four divides. Products run asynchronously and read shared memory. Every bit is the one that
// mma.sync gives for the same steps of 16 (seen on an H200). Source: NVIDIA, PTX ISA 8.0.
#pragma once

#include "kernels/cuda/tensor_cores.cuh"

namespace lockstep {

constexpr int kWarpgroup = 4 * kWarp;

// A matrix in shared memory in the 128-byte swizzle of the tensor cores: panels of 64 columns of a
// 16-bit dtype, in which the 16-byte pieces of a row are permuted by the row, so that eight rows
// lie in different banks. It begins at a multiple of 1024 bytes.
template <typename T, int kRows, int kColumns>
struct alignas(1024) SwizzledTile128B {
  static_assert(kColumns % 64 == 0 && kRows % 8 == 0);
  static constexpr unsigned kBytes = kRows * 128;  // of a panel
  T e[kColumns / 64][kRows][64];

  // The element where a piece begins: `column` is a multiple of 8.
  __device__ T* at(int row, int column) {
    return &e[column / 64][row][(column / 8 % 8 ^ row % 8) * 8];
  }
  // The matrix descriptor of wgmma, from a multiple of 8 rows on. Strides and addresses count 16
  // bytes: between panels, between groups of eight rows.
  __device__ uint64_t descriptor(int row) const {
    const uint32_t address = __cvta_generic_to_shared(e[0][row]);
    return uint64_t{1} << 62 | uint64_t{1024 / 16} << 32 | uint64_t{kBytes / 16} << 16 |
           address / 16;
  }
  // The offset of a descriptor to the 16 columns of a step, for products that sum over columns.
  __device__ static constexpr uint64_t step(int step) {
    return (step / 4 * kBytes + step % 4 * 32) / 16;
  }
};

// Orders register accesses of this thread before the products that follow.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Closes the group of products issued since the last call.
__device__ inline void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most the newest kGroups groups are pending.
template <int kGroups>
__device__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// Keeps the values of registers that products use in place here: a compiler may otherwise move what
// computes them past the instructions above.
template <int kCount>
__device__ void pin_registers(float (&sum)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    asm volatile("" : "+f"(sum[i][0]), "+f"(sum[i][1]), "+f"(sum[i][2]), "+f"(sum[i][3])::"memory");
}

// The name of a dtype in PTX.
template <typename T>
struct PtxName {
  static constexpr char kName[] = "bf16";
};
template <>
struct PtxName<__half> {
  static constexpr char kName[] = "f16";
};

// sum = a b^T, or sum += a b^T, over 16 columns of a and b, each of 64 rows in shared memory. Of
// each 32 columns of the sum a lane holds, for its warp's 16 rows, what mma_m16n8k16 gives it of
// four times eight.
template <typename T>
__device__ void wgmma_ss(float (&sum)[2][4][4], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %34, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.%35.%35 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
      ", %32, %33, add, 1, 1, 0, 0;}"
      : "+f"(sum[0][0][0]), "+f"(sum[0][0][1]), "+f"(sum[0][0][2]), "+f"(sum[0][0][3]),
        "+f"(sum[0][1][0]), "+f"(sum[0][1][1]), "+f"(sum[0][1][2]), "+f"(sum[0][1][3]),
        "+f"(sum[0][2][0]), "+f"(sum[0][2][1]), "+f"(sum[0][2][2]), "+f"(sum[0][2][3]),
        "+f"(sum[0][3][0]), "+f"(sum[0][3][1]), "+f"(sum[0][3][2]), "+f"(sum[0][3][3]),
        "+f"(sum[1][0][0]), "+f"(sum[1][0][1]), "+f"(sum[1][0][2]), "+f"(sum[1][0][3]),
        "+f"(sum[1][1][0]), "+f"(sum[1][1][1]), "+f"(sum[1][1][2]), "+f"(sum[1][1][3]),
        "+f"(sum[1][2][0]), "+f"(sum[1][2][1]), "+f"(sum[1][2][2]), "+f"(sum[1][2][3]),
        "+f"(sum[1][3][0]), "+f"(sum[1][3][1]), "+f"(sum[1][3][2]), "+f"(sum[1][3][3])
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "C"(PtxName<T>::kName));
}

// sum = a b, or sum += a b, over 16 rows of b, of 64 columns or 128, in shared memory; a warp has
// its 16 rows of a and of the sum in registers, as mma_m16n8k16 has them.
template <typename T>
__device__ void wgmma_rs(float (&sum)[8][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %37, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.%38.%38 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
      ", {%32,%33,%34,%35}, %36, add, 1, 1, 1;}"
      : "+f"(sum[0][0]), "+f"(sum[0][1]), "+f"(sum[0][2]), "+f"(sum[0][3]), "+f"(sum[1][0]),
        "+f"(sum[1][1]), "+f"(sum[1][2]), "+f"(sum[1][3]), "+f"(sum[2][0]), "+f"(sum[2][1]),
        "+f"(sum[2][2]), "+f"(sum[2][3]), "+f"(sum[3][0]), "+f"(sum[3][1]), "+f"(sum[3][2]),
        "+f"(sum[3][3]), "+f"(sum[4][0]), "+f"(sum[4][1]), "+f"(sum[4][2]), "+f"(sum[4][3]),
        "+f"(sum[5][0]), "+f"(sum[5][1]), "+f"(sum[5][2]), "+f"(sum[5][3]), "+f"(sum[6][0]),
        "+f"(sum[6][1]), "+f"(sum[6][2]), "+f"(sum[6][3]), "+f"(sum[7][0]), "+f"(sum[7][1]),
        "+f"(sum[7][2]), "+f"(sum[7][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)),
        "C"(PtxName<T>::kName));
}
template <typename T>
__device__ void wgmma_rs(float (&sum)[16][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %69, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.%70.%70 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
      ", {%64,%65,%66,%67}, %68, add, 1, 1, 1;}"
      : "+f"(sum[0][0]), "+f"(sum[0][1]), "+f"(sum[0][2]), "+f"(sum[0][3]), "+f"(sum[1][0]),
        "+f"(sum[1][1]), "+f"(sum[1][2]), "+f"(sum[1][3]), "+f"(sum[2][0]), "+f"(sum[2][1]),
        "+f"(sum[2][2]), "+f"(sum[2][3]), "+f"(sum[3][0]), "+f"(sum[3][1]), "+f"(sum[3][2]),
        "+f"(sum[3][3]), "+f"(sum[4][0]), "+f"(sum[4][1]), "+f"(sum[4][2]), "+f"(sum[4][3]),
        "+f"(sum[5][0]), "+f"(sum[5][1]), "+f"(sum[5][2]), "+f"(sum[5][3]), "+f"(sum[6][0]),
        "+f"(sum[6][1]), "+f"(sum[6][2]), "+f"(sum[6][3]), "+f"(sum[7][0]), "+f"(sum[7][1]),
        "+f"(sum[7][2]), "+f"(sum[7][3]), "+f"(sum[8][0]), "+f"(sum[8][1]), "+f"(sum[8][2]),
        "+f"(sum[8][3]), "+f"(sum[9][0]), "+f"(sum[9][1]), "+f"(sum[9][2]), "+f"(sum[9][3]),
        "+f"(sum[10][0]), "+f"(sum[10][1]), "+f"(sum[10][2]), "+f"(sum[10][3]), "+f"(sum[11][0]),
        "+f"(sum[11][1]), "+f"(sum[11][2]), "+f"(sum[11][3]), "+f"(sum[12][0]), "+f"(sum[12][1]),
        "+f"(sum[12][2]), "+f"(sum[12][3]), "+f"(sum[13][0]), "+f"(sum[13][1]), "+f"(sum[13][2]),
        "+f"(sum[13][3]), "+f"(sum[14][0]), "+f"(sum[14][1]), "+f"(sum[14][2]), "+f"(sum[14][3]),
        "+f"(sum[15][0]), "+f"(sum[15][1]), "+f"(sum[15][2]), "+f"(sum[15][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)),
        "C"(PtxName<T>::kName));
}

// A shared-memory barrier of the pipeline: one side arrives, the other waits. The n-th completion
// is that of phase n % 2.
class Mbarrier {
 public:
  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals)
                 : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }
  __device__ void wait(unsigned phase) {
    asm volatile(
        "{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; "
        "@!done bra again;}" ::"r"(address()),
        "r"(phase)
        : "memory");
  }

 private:
  __device__ uint32_t address() const { return __cvta_generic_to_shared(&state_); }
  uint64_t state_;
};

// Makes this thread's writes to shared memory visible to the asynchronous proxy (wgmma).
__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Whether `mine` is true in any thread of the warpgroup; a barrier for all of them.
__device__ inline bool warpgroup_any(int barrier, bool mine) {
  int any;
  asm volatile(
      "{.reg .pred mine, any; setp.ne.b32 mine, %1, 0; "
      "barrier.cta.red.or.pred any, %2, 128, mine; selp.b32 %0, 1, 0, any;}"
      : "=r"(any)
      : "r"(static_cast<int>(mine)), "r"(barrier)
      : "memory");
  return any != 0;
}

// Reallocates registers: all warps of a warpgroup release, or acquire, down or up to kCount a
// thread.
template <int kCount>
__device__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace lockstep
