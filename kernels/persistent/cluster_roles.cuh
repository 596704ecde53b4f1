// Which cluster the blocks on a GPC play. A cluster that attends reads nearly twice as much as
// another, and a GPC reads what lies in its own half of the L2 cache without crossing to the other
// one, so that both halves should have as many of them. CUDA names neither GPCs nor halves: the
// blocks of a cluster are on one GPC, and GPCs are told by their first multiprocessors.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/persistent/cluster_plan.cuh"

namespace lockstep::persistent::clustered {

__device__ inline int multiprocessor_number() {
  int number;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
  return number;
}

// Says on which multiprocessor each block is, and stays long enough for all clusters to be there at
// once.
__global__ void __launch_bounds__(kBlockThreads, 1) find_blocks(int* multiprocessors) {
  constexpr uint64_t kStay = 50'000;  // ns
  const uint64_t begin = nanoseconds();
  if (threadIdx.x == 0) multiprocessors[blockIdx.x] = multiprocessor_number();
  while (nanoseconds() - begin < kStay) {
  }
}

// Gives the multiprocessors on which blocks were found their clusters. Returns false where two
// clusters were on one GPC, one after the other.
inline bool deal_roles(const int* found, unsigned char* role) {
  // The step of Qwen3-0.6B at context 128 took 432 us so on an H100, and 431 to 439 with four other
  // choices. A prototype took 426 so on an H100, 422 to 466 with the others, and was fastest so on
  // an H200.
  constexpr std::array<unsigned char, kClusters> kRoles = {4, 5, 0, 1, 2, 6, 3};
  std::vector<int> all(found, found + kBlocks);
  std::ranges::sort(all);
  if (all.back() >= kMostMultiprocessors || std::ranges::adjacent_find(all) != all.end())
    return false;
  std::array<std::vector<int>, kClusters> gpcs;
  for (int b = 0; b < kBlocks; ++b) gpcs[b / kClusterBlocks].push_back(found[b]);
  for (std::vector<int>& gpc : gpcs) std::ranges::sort(gpc);
  std::ranges::sort(gpcs);
  for (size_t g = 0; g < gpcs.size(); ++g)
    for (const int number : gpcs[g]) role[number] = kRoles[g];
  return true;
}

}  // namespace lockstep::persistent::clustered
