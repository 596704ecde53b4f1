// The digests of tensors on a device, many in one launch: the hash, counts, range and histogram of
// the host's (probes/digest.cc), and sums that agree with the host's to rounding. Memory is read
// once.
//
//   grid     all jobs' blocks one behind another; a block finds its job by FirstBlocks
//   part     kPart bytes of a tensor: each warp takes blocks of 1024 bytes in rounds
//     hash     the sum of a block's stripes goes to scratch: sums commute, scrambles do not
//     numbers  Seen, of a lane -> of a warp -> of the block -> Part in scratch
//     m2       a second look at the block's words, which are in a cache, about the part's own mean
//   last     the block whose part is ready last (an atomic count) chains the sums of all
//            blocks into the hash with one warp, and adds up the parts with another
//   rows     further blocks hash each row by itself
//
// Parts are joined as Chan, Golub and LeVeque (1979) join means and squares, so that no sum of
// squares cancels. Sums are made in an order that depends on the size alone: the same tensor has
// the same digest however the launch was filled.
#pragma once

#include <bit>

#include "kernels/base/digest.h"
#include "kernels/cuda/device.cuh"

namespace lockstep {

// The digest maker of a CUDA device.
DigestMaker device_digests(int index);

static_assert(std::has_single_bit(static_cast<unsigned>(DigestMaker::kMostJobs)));

// The first block of threads of each job of a launch.
struct FirstBlocks {
  unsigned of[DigestMaker::kMostJobs];

  // The job of a block, by all threads alike: arguments of a kernel are read quickly where all
  // read the same.
  __device__ int job_of(unsigned block, int count) const {
    int job = 0;
    for (int step = DigestMaker::kMostJobs / 2; step > 0; step /= 2)
      if (job + step < count && of[job + step] <= block) job += step;
    return job;
  }
};

// By `threads` threads of which this is number `thread`, before they meet and read the tensor:
// returns when its element `last` of `columns` in a row is there, and what comes before it. Gives
// up after a while, and reports it.
__device__ inline void await_ready(const Ready& ready, int64_t last, int64_t columns,
                                   unsigned thread, unsigned threads, BadIndex* bad) {
  constexpr unsigned kPause = 300;                   // ns between looks, which cost the launch
  constexpr int kSeconds = 10, kLooks = 30'000'000;  // that many last longer
  // A part of several rows waits for all of them. Words are raised in no order, since the warps of
  // a step that raise them do not wait for each other.
  const int64_t column = last < columns ? last : columns - 1;
  const int64_t words = ready.columns > 0 ? column / ready.columns + 1 : 1;
  for (int64_t i = thread; i < words; i += threads) {
    const uint32_t* const word = ready.words + i;
    const auto is_there = [&] {
      uint32_t now;
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
      return now >= ready.least;
    };
    int looks = 0;
    while (!is_there() && ++looks < kLooks) __nanosleep(kPause);
    if (looks == kLooks) report(bad, BadIndex::Of::digest_wait, kSeconds, 0, blockIdx.x);
  }
  // Once, since it empties the first-level cache of the multiprocessor.
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
// By all threads of a block.
__device__ inline void await_ready(const Ready& ready, int64_t last, int64_t columns,
                                   BadIndex* bad) {
  if (ready.words == nullptr) return;
  await_ready(ready, last, columns, threadIdx.x, blockDim.x, bad);
  __syncthreads();
}

// The parts of a DigestMaker that launch, and the event at which the blocks of a decode step have
// begun.
void make_digests(std::span<const DigestJob> jobs, void* scratch, CUstream_st* stream);
int64_t digest_scratch_bytes(std::span<const DigestJob> jobs);
void hash_caches(std::span<const CacheJob> jobs, CUstream_st* stream);
void digest_meanwhile(std::span<const DigestJob> jobs, void* scratch, void* list,
                      CUstream_st* stream);
MeanwhileRoom meanwhile_room(std::span<const DigestJob> jobs);
cudaEvent_t step_begun();

}  // namespace lockstep
