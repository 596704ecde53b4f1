// The input of the kernels of digests: the jobs of a launch, the bytes of their tensors, and their
// elements.
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels/cuda/digest.cuh"
#include "kernels/cuda/xxh3.cuh"

namespace lockstep::digests {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRounds = 4;  // in each of which a warp sums a block of XXH3 up
constexpr int64_t kPart = kRounds * kWarps * xxh3::kBlock;  // bytes of a block of threads

// The contribution of a part of a tensor, or of all of it, to its digest; the numbers are of its
// finite elements.
struct Part {
  double sum, sum_abs, sum_squares, m2, min, max, absmax;
  int64_t at;  // of absmax; -1: nothing finite
  uint32_t finite, nan, pos_inf, neg_inf, zeros, subnormals;
};

// The scratch in which the parts of one tensor are counted and combined; zero at first.
struct TensorScratch {
  uint32_t arrived;
  uint32_t exponents[256];
};

// A job with the places in its launch and its scratch. All TensorScratches come first; then each
// tensor has, for each part, the sums of its blocks and a Part.
struct Work {
  DigestJob job;
  int64_t parts;       // of a tensor that fills its room
  int64_t row_blocks;  // blocks of threads that hash its rows, a row a warp
  int64_t scratch;     // bytes of it before this job's
  int64_t element;     // bytes of one

  __host__ __device__ int64_t blocks() const { return parts + row_blocks; }
  __host__ __device__ int64_t sums_bytes() const {
    return parts * kRounds * kWarps * 8 * int64_t{sizeof(uint64_t)};
  }
  __host__ __device__ int64_t parts_bytes() const { return parts * int64_t{sizeof(Part)}; }
  // Sums are copied 16 bytes at a time.
  __host__ __device__ int64_t bytes() const {
    return (sums_bytes() + parts_bytes() + 15) / 16 * 16;
  }
};

struct JobTable {
  int count;
  FirstBlocks first;
  Work of[DigestMaker::kMostJobs];
};
static_assert(sizeof(JobTable) <= 32764, "a kernel takes that many bytes of arguments");

// The bytes of a tensor. Goes by value, so that it stays in registers.
class Input {
 public:
  __device__ explicit Input(const DigestJob& job) : data_(static_cast<const char*>(job.data)) {
    const int64_t rows = *job.rows;
    rows_ = rows < 0 ? 0 : min(rows, job.most_rows);
    size_ = rows_ * job.row_bytes;
    words_ = reinterpret_cast<uintptr_t>(data_) % 8 == 0;
  }

  __device__ int64_t rows() const { return rows_; }
  __device__ int64_t size() const { return size_; }

  __device__ uint64_t byte(int64_t at) const { return static_cast<uint8_t>(data_[at]); }
  __device__ uint64_t half(int64_t at) const { return xxh3::assembled(*this, at, 4); }
  __device__ uint64_t word(int64_t at) const {
    if (!words_ || at % 8 != 0) return xxh3::assembled(*this, at, 8);
    return *reinterpret_cast<const uint64_t*>(data_ + at);
  }
  // Where the bytes of a block of XXH3 are that begins there, if they are all the tensor's, to be
  // read in words; else null.
  __device__ const char* run(int64_t at) const {
    return words_ && at % 8 == 0 && at + xxh3::kBlock <= size_ ? data_ + at : nullptr;
  }
  // The bytes from there to the end, at most 8, and zeros.
  __device__ uint64_t tail(int64_t at) const {
    if (at >= size_) return 0;
    return at + 8 <= size_ ? word(at) : xxh3::assembled(*this, at, size_ - at);
  }

 private:
  const char* data_;
  int64_t rows_, size_;
  bool words_;
};

// How an element of a dtype is widened, exactly: to fp32 where that can hold it, for fp64 is
// slower. kTiny is the smallest normal number.
template <typename T, typename W>
struct Element {
  using Wide = W;
  static constexpr int kCount = 8 / sizeof(T);  // in a word
  __device__ static W wide(uint64_t word, int i) {
    using Bits = std::conditional_t<
        sizeof(T) == 1, uint8_t,
        std::conditional_t<sizeof(T) == 2, uint16_t,
                           std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;
    const auto bits = static_cast<Bits>(word >> i * 8 * int{sizeof(T)});
    T value;
    memcpy(&value, &bits, sizeof(T));
    if constexpr (std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>)
      return widen(value);
    else
      return static_cast<W>(value);
  }
};

// Exponent of |x| as an fp32 stores it, as probes/digest.cc has it.
__device__ inline int exponent_bin(float x) { return __float_as_uint(x) >> 23 & 0xff; }
__device__ inline int exponent_bin(double x) {
  const int biased = static_cast<uint64_t>(__double_as_longlong(x)) >> 52 & 0x7ff;
  return min(max(biased - 1023 + 127, 0), 255);
}

}  // namespace lockstep::digests
