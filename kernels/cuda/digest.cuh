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
