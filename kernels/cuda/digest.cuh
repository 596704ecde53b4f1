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

void hash_caches(std::span<const CacheJob> jobs, CUstream_st* stream);

}  // namespace lockstep
