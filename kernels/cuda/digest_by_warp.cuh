// A digest by a single warp: it reads some blocks of a tensor into shared memory of its own, hashes
// them and looks at their numbers.
#pragma once

#include "kernels/cuda/digest_numbers.cuh"

namespace lockstep::digests::by_warp {

constexpr int kColumns = 8;         // of the exponents that a warp counts
constexpr int64_t kPartBlocks = 4;  // of XXH3, of a part
constexpr int64_t kPartBytes = kPartBlocks * xxh3::kBlock;
constexpr int64_t kBlockWords = xxh3::kBlock / 8;
constexpr int64_t kJoined = 512;  // parts whose numbers are kept until all are there

// A warp's own shared memory, for one thing at a time.
union Room {
  struct {
    uint32_t counts[256 * kColumns];            // of exponents
    uint64_t words[kPartBlocks * kBlockWords];  // of a tensor
  } tensor;
  uint64_t sums[kWarp * kPartBlocks * 8];  // of parts
  struct {
    double finite, sum, m2;
  } parts[kJoined];
};

__device__ inline int lane() { return static_cast<int>(threadIdx.x % kWarp); }

__device__ inline Room& room_of_warp() {
  extern __shared__ __align__(16) char rooms[];
  return reinterpret_cast<Room*>(rooms)[threadIdx.x / kWarp];
}
__device__ inline uint32_t* cleared_counts() {
  uint32_t* const counts = room_of_warp().tensor.counts;
  auto* four = reinterpret_cast<uint4*>(counts);
  for (int i = lane(); i < 256 * kColumns / 4; i += kWarp) four[i] = {};
  __syncwarp();
  return counts;
}
// Calls use(bin, count) for the bins of a lane.
template <typename Use>
__device__ void each_count(const uint32_t* counts, Use use) {
  static_assert(kColumns == 8);
  __syncwarp();
  for (int bin = lane(); bin < 256; bin += kWarp) {
    const auto* four = reinterpret_cast<const uint4*>(counts + bin * kColumns);
    const uint4 a = four[0], b = four[1];
    use(bin, a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w);
  }
}

// The code from here on is short, and the same for all dtypes where it can be: instructions arrive
// as late as the numbers.

__device__ inline int64_t blocks_of(int64_t size) {
  return (size + xxh3::kBlock - 1) / xxh3::kBlock;
}
__device__ inline int64_t parts_of(int64_t size) {
  return max(int64_t{1}, (size + kPartBytes - 1) / kPartBytes);
}

// Blocks [begin, end) of a tensor, at most kPartBlocks, into the warp's shared memory; all of them
// are read at once.
__device__ __noinline__ inline void read_blocks(Input input, int64_t begin, int64_t end) {
  constexpr int kEach = xxh3::Warp::kWords, kAll = kPartBlocks * kEach;
  uint64_t* const to = room_of_warp().tensor.words + lane();
  __syncwarp();  // what is overwritten has been read
  const int64_t first = begin * xxh3::kBlock + lane() * 8;
  if (input.run((end - 1) * xxh3::kBlock) != nullptr) {
    const char* from = input.run(begin * xxh3::kBlock) + lane() * 8;
    const int mine = static_cast<int>(end - begin) * kEach;
    uint64_t words[kAll];
#pragma unroll
    for (int i = 0; i < kAll; ++i)
      if (i < mine) words[i] = *reinterpret_cast<const uint64_t*>(from + i * kWarp * 8);
#pragma unroll
    for (int i = 0; i < kAll; ++i)
      if (i < mine) to[i * kWarp] = words[i];
  } else {
#pragma unroll 1
    for (int i = 0; i < (end - begin) * kEach; ++i)
      to[i * kWarp] = input.tail(first + i * kWarp * 8);
  }
  __syncwarp();
}
__device__ inline const uint64_t* words_of(int64_t block_in_room) {
  return room_of_warp().tensor.words + block_in_room * kBlockWords;
}

__host__ __device__ inline bool has_whole_blocks(const DigestJob& job) {
  return job.row_bytes % xxh3::kBlock == 0;
}

// The hash of a tensor and those of its rows, if these are of whole blocks; or, of one that is
// long, the sums of its blocks alone.
class Hasher {
 public:
  __device__ explicit Hasher(uint64_t* sums) : sums_(sums) {}
  __device__ Hasher(const DigestJob& job, Input input)
      : rows_(has_whole_blocks(job) && input.rows() > 1 ? job.row_hashes : nullptr),
        row_blocks_(job.row_bytes / xxh3::kBlock) {}
  // Has taken up all blocks, whose sums were added to `accumulator` elsewhere.
  __device__ explicit Hasher(uint64_t accumulator) : accumulator_(accumulator) {}

  // Takes up the blocks that are in the warp's shared memory.
  __device__ __noinline__ void take(int64_t size, int64_t begin, int64_t end) {
    if (size <= xxh3::kShort) return;
    const xxh3::Warp warp;
    if (begin == 0) accumulator_ = warp.start();
#pragma unroll 1
    for (int64_t block = begin; block < end; ++block) {
      uint64_t words[xxh3::Warp::kWords];
      for (int i = 0; i < xxh3::Warp::kWords; ++i)
        words[i] = words_of(block - begin)[lane() + i * kWarp];
      const bool full = block < xxh3::full_blocks(size);
      const uint64_t sum = warp.sum(words, full ? 16 : xxh3::last_stripes(size));
      if (sums_ != nullptr) {
        if (lane() < 8) sums_[block * 8 + lane()] = sum;
        continue;
      }
      accumulator_ = block == 0 ? accumulator_ + sum : warp.scrambled(accumulator_, sum);
      if (rows_ != nullptr) take_row(warp, words, block, words_of(block - begin));
    }
  }
  // The hash of the tensor.
  __device__ __noinline__ uint64_t end(Input input) const {
    const int64_t size = input.size();
    if (size <= xxh3::kShort) return xxh3::hash_short(input, 0, size);
    const xxh3::Warp warp;
    return warp.finish(accumulator_, input.word(size - xxh3::kStripe + 8 * warp.own()), size);
  }

 private:
  __device__ void take_row(const xxh3::Warp& warp, const uint64_t (&words)[xxh3::Warp::kWords],
                           int64_t block, const uint64_t* all) {
    const int64_t place = block % row_blocks_;
    if (place == 0) of_row_ = warp.start();
    const bool last = place == row_blocks_ - 1;
    of_row_ += warp.sum(words, last ? 15 : 16);
    if (!last) {
      of_row_ = warp.scrambled(of_row_);
      return;
    }
    const uint64_t hash =
        warp.finish(of_row_, all[kBlockWords - 8 + warp.own()], row_blocks_ * xxh3::kBlock);
    if (lane() == 0) rows_[block / row_blocks_] = hash;
  }

  uint64_t *sums_ = nullptr, *rows_ = nullptr;
  int64_t row_blocks_ = 1;
  uint64_t accumulator_ = 0, of_row_ = 0;
};

// A warp looks at some blocks of a tensor, which the hasher takes up too. The result is the
// first lane's.
template <typename E>
__device__ __noinline__ Part found_in(Input input, int64_t begin, int64_t end,
                                      typename E::Wide tiny, uint32_t* counts, Hasher& hasher) {
  const int64_t size = input.size();
  Seen<E, kColumns> seen(counts);
#pragma unroll 1
  for (int64_t first = begin; first < end; first += kPartBlocks) {
    const int64_t last = min(first + kPartBlocks, end);
    read_blocks(input, first, last);
    hasher.take(size, first, last);
#pragma unroll 1
    for (int64_t block = first; block < last; ++block)
      seen.look_at(Words(words_of(block - first), input, block), size, tiny);
  }
  Part all = seen.total();
  const double mean = __shfl_sync(~0u, mean_of(all), 0);
  double m2 = 0;
#pragma unroll 1
  for (int64_t first = begin; first < end; first += kPartBlocks) {
    const int64_t last = min(first + kPartBlocks, end);
    if (end - begin > kPartBlocks) read_blocks(input, first, last);
#pragma unroll 1
    for (int64_t block = first; block < last; ++block)
      m2 += deviation<E>(Words(words_of(block - first), input, block), size, mean);
  }
  all.m2 = warp_sum_64(m2);
  return all;
}
__device__ inline Part found_in(DType dtype, Input input, int64_t begin, int64_t end,
                                uint32_t* counts, Hasher& hasher) {
  Part part;
  with_element(dtype, [&]<typename E>(E, typename E::Wide tiny) {
    part = found_in<E>(input, begin, end, tiny, counts, hasher);
  });
  return part;
}

}  // namespace lockstep::digests::by_warp
