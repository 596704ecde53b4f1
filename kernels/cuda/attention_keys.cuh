// Blocks of keys and values on their way from the pages of the cache to shared memory.
//
//   page table -> a key a lane (locate_key) -> 16-byte pieces, cp.async -> swizzled KvTile
#pragma once

#include <bit>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/tensor_cores.cuh"

namespace lockstep {

// A block of keys or values in shared memory. Eight rows at one column lie in different banks: the
// columns of a row are swizzled where head_dim allows it, else rows are padded.
template <typename T, int kDim>
class KvTile {
 public:
  // Eight columns of a row, from a multiple of eight on.
  __device__ T* at(int row, int column) {
    return &rows_[row][kSwizzled ? column ^ row % 8 * 8 : column];
  }
  __device__ const T* at(int row, int column) const {
    return &rows_[row][kSwizzled ? column ^ row % 8 * 8 : column];
  }

 private:
  static constexpr bool kSwizzled = kDim % 64 == 0;
  T rows_[kBlockKeys][kSwizzled ? kDim : kDim + 8];
};

template <typename T, int kDim>
struct KvBlock {
  KvTile<T, kDim> k, v;
};

constexpr int64_t kUnwantedKey = -2;  // the offset of a key that no row sees

// The offset in the cache of this lane's key, in a block that begins at position `first`.
template <typename T>
__device__ int64_t locate_key(const AttentionArguments<T>& a, const Queries& queries, int kv_head,
                              int first, KeyRange wanted) {
  const int key = first + static_cast<int>(threadIdx.x % kWarp);
  if (key < wanted.begin || key >= wanted.end) return kUnwantedKey;
  return key_offset(a, queries, kv_head, key);
}

// Loads a block of keys or values with kThreads threads, which share its 16-byte pieces. kOnce:
// few tiles read these keys, so that they need not stay in the L2 cache.
template <typename T, int kDim, int kThreads, bool kOnce = false>
class KvTileLoader {
 public:
  __device__ explicit KvTileLoader(int64_t mine)  // the offset of this lane's key
      : mine_(static_cast<uint32_t>(max(mine, int64_t{0}) / kDim)),
        known_(__ballot_sync(~0u, mine >= 0)),
        missing_(__ballot_sync(~0u, mine == -1)) {}
  // Starts to load the keys, or the values. Keys that no row sees become zeros, and those without a
  // page NaN.
  __device__ void load(KvTile<T, kDim>& to, const T* from) const {
    load_to([&](int row, int column) { return to.at(row, column); }, from);
  }
  // The same; `to(row, column)` points to where a key's elements from a column on are stored.
  template <typename To>
  __device__ void load_to(To to, const T* from) const {
    if (known_ == ~0u) {
#pragma unroll 8  // unrolled fully, the addresses would take too many registers
      for (int i = 0; i < kCount; ++i) {
        const T* const piece = source(from, i);
        if (exists(i)) copy_piece(to(row(i), column()), piece);
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) {
      const T* const piece = source(from, i);
      if (!exists(i)) continue;
      if ((missing_ >> row(i) & 1) != 0)
        *reinterpret_cast<uint4*>(to(row(i), column())) = {~0u, ~0u, ~0u, ~0u};
      else if ((known_ >> row(i) & 1) != 0)
        copy_piece(to(row(i), column()), piece);
      else
        *reinterpret_cast<uint4*>(to(row(i), column())) = {};
    }
  }

 private:
  // A row has kPerRow pieces and kAcross threads, so that a thread keeps its column.
  static constexpr int kPerRow = kDim / 8, kAcross = std::bit_ceil(unsigned{kPerRow});
  static constexpr int kRows = kThreads / kAcross, kCount = (kBlockKeys + kRows - 1) / kRows;
  static constexpr bool kWhole = kPerRow == kAcross && kBlockKeys % kRows == 0;
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % kThreads; }
  __device__ static int row(int i) { return thread() / kAcross + i * kRows; }
  __device__ static int column() { return thread() % kAcross * 8; }
  __device__ static bool exists(int i) {
    return kWhole || (row(i) < kBlockKeys && column() < kDim);
  }

  __device__ static void copy_piece(T* to, const T* from) {
    if constexpr (kOnce)
      cp_async_evict_first(to, from);
    else
      cp_async(to, from);
  }
  __device__ const T* source(const T* from, int i) const {
    return from + int64_t{__shfl_sync(~0u, mine_, row(i) % kWarp)} * kDim + column();
  }

  // The number of this lane's key among those of all K/V heads.
  uint32_t mine_;
  unsigned known_, missing_;
};

}  // namespace lockstep
