// What the kernel of digests reads: the jobs of a launch, the bytes of their tensors in logical
// order, and their elements.
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels/digest.cuh"
#include "kernels/xxh3.cuh"

namespace lockstep::digests {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRounds = 4;  // in each of which a warp sums a block of XXH3 up
constexpr int64_t kPart = kRounds * kWarps * xxh3::kBlock;  // bytes of a block of threads

// What a part of a tensor adds to its digest; the numbers are of its finite elements.
struct Part {
  double sum, sum_abs, sum_squares, m2, min, max, absmax;
  int64_t at;  // of absmax; -1: nothing finite
  int32_t finite, nan, pos_inf, neg_inf, zeros, subnormals;
};

// Where the parts of one tensor meet; zero at first.
struct Meeting {
  uint32_t arrived;
  uint32_t exponents[256];
};

// A job with the places in its launch and its scratch. All Meetings come first; then each request
// has, for each part, the sums of its blocks and a Part.
struct Work {
  DigestJob job;
  int64_t parts;        // of a request that fills its room
  int64_t row_blocks;   // blocks of threads that hash its rows, a row a warp
  int64_t first_block;  // of the launch
  int64_t meeting;      // the first of its
  int64_t scratch;      // bytes of it before this job's
  int64_t element;      // bytes of one

  __host__ __device__ int64_t bytes_of_row() const {
    return job.values == nullptr ? job.row_bytes : 2 * job.row_bytes;
  }
  __host__ __device__ int64_t blocks() const { return job.requests * (parts + row_blocks); }
  __host__ __device__ int64_t sums_bytes() const {
    return parts * kRounds * kWarps * 8 * static_cast<int64_t>(sizeof(uint64_t));
  }
  __host__ __device__ int64_t parts_bytes() const {
    return parts * static_cast<int64_t>(sizeof(Part));
  }
  __host__ __device__ int64_t request_bytes() const { return sums_bytes() + parts_bytes(); }
};

struct Works {
  int count;
  Work of[DigestMaker::kMostJobs];
};
static_assert(sizeof(Works) <= 32764, "a kernel takes that many bytes of arguments");

// x / y and x % y, by a shift where y is a power of two: a division costs as much as all else that
// finding a word takes.
struct Divisor {
  int64_t by = 1;
  int shift = -1;  // -1: no power of two

  __host__ __device__ explicit Divisor(int64_t y) : by(y) {
    if ((y & (y - 1)) == 0)
      for (shift = 0; int64_t{1} << shift < y;) ++shift;
  }
  __device__ int64_t quotient(int64_t x) const { return shift >= 0 ? x >> shift : x / by; }
  __device__ int64_t rest(int64_t x) const { return shift >= 0 ? x & (by - 1) : x % by; }
};

// The bytes of one request's tensor, in logical order. Goes by value, so that it stays in
// registers.
class Input {
 public:
  __device__ Input(const Work& work, int64_t request)
      : data_(static_cast<const char*>(work.job.data)),
        values_(static_cast<const char*>(work.job.values)),
        table_(work.job.table == nullptr ? nullptr : work.job.table + request * work.job.width),
        width_(work.job.width),
        pages_(work.job.pages),
        row_(work.job.row_bytes),
        position_(2 * work.job.row_bytes),
        page_(work.job.page_size) {
    const int64_t rows = work.job.rows[request];
    rows_ = rows < 0 ? 0 : min(rows, work.job.most_rows);
    size_ = rows_ * work.bytes_of_row();
    words_ = row_ % 8 == 0 && reinterpret_cast<uintptr_t>(data_) % 8 == 0 &&
             reinterpret_cast<uintptr_t>(values_) % 8 == 0;
  }

  __device__ int64_t rows() const { return rows_; }
  __device__ int64_t size() const { return size_; }

  __device__ uint64_t byte(int64_t at) const {
    const char* place = this->place(at);
    return place == nullptr ? 0xff : *reinterpret_cast<const uint8_t*>(place);
  }
  __device__ uint64_t half(int64_t at) const { return assembled(*this, at, 4); }
  __device__ uint64_t word(int64_t at) const {
    if (!words_ || at % 8 != 0) return assembled(*this, at, 8);
    const char* place = this->place(at);
    return place == nullptr ? ~0ull : *reinterpret_cast<const uint64_t*>(place);
  }
  // Where the bytes of a block of XXH3 are that begins there, if they are all the tensor's and lie
  // one behind the other, to be read in words; else null. What is on both sides of a long row is
  // looked for once, and not for every word.
  __device__ const char* run(int64_t at) const {
    if (!words_ || at % 8 != 0 || at + xxh3::kBlock > size_) return nullptr;
    if (table_ != nullptr && (row_ % xxh3::kBlock != 0 || at % xxh3::kBlock != 0)) return nullptr;
    return place(at);
  }
  // The bytes from there to the end, at most 8, and zeros.
  __device__ uint64_t tail(int64_t at) const {
    if (at >= size_) return 0;
    return at + 8 <= size_ ? word(at) : assembled(*this, at, static_cast<int>(size_ - at));
  }

 private:
  // Seldom: of what is not aligned, and at ends.
  __device__ static __noinline__ uint64_t assembled(Input input, int64_t at, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value |= input.byte(at + i) << 8 * i;
    return value;
  }
  // Null in a page that the pool lacks.
  __device__ const char* place(int64_t at) const {
    if (table_ == nullptr) return data_ + at;
    const int64_t position = position_.quotient(at), within = position_.rest(at);
    const int64_t entry = page_.quotient(position);
    const int64_t page = entry < width_ ? table_[entry] : -1;
    if (page < 0 || page >= pages_) return nullptr;
    const int64_t slot = page * page_.by + page_.rest(position);
    return within < row_ ? data_ + slot * row_ + within : values_ + slot * row_ + within - row_;
  }

  const char *data_, *values_;
  const int32_t* table_;
  int64_t width_, pages_, row_, rows_, size_;
  Divisor position_, page_;  // bytes of a position's K and V, positions of a page
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
    const auto bits = static_cast<Bits>(word >> i * 8 * static_cast<int>(sizeof(T)));
    T value;
    memcpy(&value, &bits, sizeof(T));
    if constexpr (std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>)
      return widen(value);
    else
      return static_cast<W>(value);
  }
};

// Exponent of |x| as an fp32 stores it, as probes/digest.cc has it.
__device__ inline int exponent_bin(float x) {
  return static_cast<int>(__float_as_uint(x) >> 23 & 0xff);
}
__device__ inline int exponent_bin(double x) {
  const auto biased =
      static_cast<int>(static_cast<uint64_t>(__double_as_longlong(x)) >> 52 & 0x7ff);
  return min(max(biased - 1023 + 127, 0), 255);
}

}  // namespace lockstep::digests
