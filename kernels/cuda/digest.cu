#include <cuda_pipeline.h>

#include <utility>

#include "kernels/base/memory.h"
#include "kernels/cuda/digest_numbers.cuh"

namespace lockstep {
namespace {

using namespace digests;

// Calls use(block) for the warp's blocks of a part.
template <typename Use>
__device__ void each_block(int64_t part, int64_t size, Use use) {
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    const int64_t block = (part * kRounds + round) * kWarps + threadIdx.x / kWarp;
    if (block * xxh3::kBlock >= size) return;
    use(block);
  }
}

// Each lane of a warp counts exponents in a column of its own.
constexpr int kExponents = 256 * kWarp;
extern __shared__ __align__(16) uint32_t exponents[];

// The numbers of a part, of which each warp has looked at its blocks, in thread 0.
template <typename E>
__device__ Part block_total(Input input, int64_t index, Seen<E, kWarp>& seen) {
  __shared__ Part of_warp[kWarps];
  __shared__ double squares[kWarps], mean;
  const bool leads = threadIdx.x % kWarp == 0;
  const xxh3::Warp warp;
  const Part part = seen.total();
  if (leads) of_warp[threadIdx.x / kWarp] = part;
  __syncthreads();
  Part all = {};
  if (threadIdx.x == 0) {
    all = of_warp[0];
#pragma unroll 1
    for (int i = 1; i < kWarps; ++i) add(all, of_warp[i]);
    mean = mean_of(all);
  }
  __syncthreads();
  double m2 = 0;
  each_block(index, input.size(), [&](int64_t block) {
    m2 += deviation<E>(Words(input, warp, block), input.size(), mean);
  });
  m2 = warp_sum_64(m2);
  if (leads) squares[threadIdx.x / kWarp] = m2;
  __syncthreads();
  if (threadIdx.x == 0)
#pragma unroll 1
    for (const double square : squares) all.m2 += square;
  return all;
}

// Part `index` of a tensor: the sums of its blocks for the hash, and what its elements add.
template <typename E>
__device__ __noinline__ void sum_part(Input input, int64_t index, typename E::Wide tiny,
                                      uint64_t* sums, Part* to, TensorScratch* tensor_scratch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int i = 0; i < kWarp; ++i) exponents[i * kThreads + threadIdx.x] = 0;
  __syncthreads();
  const xxh3::Warp warp;
  const int64_t size = input.size();
  Seen<E, kWarp> seen(exponents);
  each_block(index, size, [&](int64_t block) {
    const Words in(input, warp, block);
    if (size > xxh3::kShort) {
      const bool full = block < xxh3::full_blocks(size);
      const uint64_t sum = warp.sum(in.words, full ? 16 : xxh3::last_stripes(size));
      if (lane < 8) sums[block * 8 + lane] = sum;
    }
    seen.look_at(in, size, tiny);
  });
  const Part all = block_total<E>(input, index, seen);
  if (threadIdx.x == 0) *to = all;
  uint32_t count = 0;
  for (int i = 0; i < kWarp; ++i) count += exponents[threadIdx.x * kWarp + (i + lane) % kWarp];
  if (count != 0) atomicAdd(&tensor_scratch->exponents[threadIdx.x], count);
}

// Sums of blocks that the chain below takes up at once, and those that are on their way meanwhile:
// what comes from the device's cache takes as long as some hundred of its steps.
constexpr int kBatch = 64, kBatches = 4;
static_assert(kBatches * kBatch * 8 * sizeof(uint64_t) <= kExponents * sizeof(uint32_t));

// The hash of a whole tensor by one warp, from the sums of its blocks. `room` is shared memory for
// kBatches batches.
__device__ uint64_t hash_from(Input input, const uint64_t* sums, uint64_t* room) {
  const int64_t size = input.size();
  if (size <= xxh3::kShort) return xxh3::hash_short(input, 0, size);
  const xxh3::Warp warp;
  const int64_t blocks = xxh3::full_blocks(size);  // after the first one
  const auto fetch = [&](int64_t batch) {
    const int64_t begin = batch * kBatch * 8, end = min(begin + kBatch * 8, blocks * 8);
    for (int64_t i = begin + 2 * (threadIdx.x % kWarp); i < end; i += 2 * kWarp)
      __pipeline_memcpy_async(&room[i % (kBatches * kBatch * 8)], &sums[8 + i], 16);
    __pipeline_commit();
  };
  for (int batch = 0; batch < kBatches - 1; ++batch) fetch(batch);
  uint64_t accumulator = warp.start() + __ldcg(&sums[warp.own()]);
  for (int64_t batch = 0; batch * kBatch < blocks; ++batch) {
    __syncwarp();  // what is overwritten now has been taken up
    fetch(batch + kBatches - 1);
    __pipeline_wait_prior(kBatches - 1);
    __syncwarp();
    const uint64_t* own = &room[batch % kBatches * kBatch * 8 + warp.own()];
    const int64_t left = blocks - batch * kBatch;
    if (left >= kBatch) {
#pragma unroll 16
      for (int i = 0; i < kBatch; ++i) accumulator = warp.scrambled(accumulator, own[8 * i]);
    } else {
      for (int i = 0; i < left; ++i) accumulator = warp.scrambled(accumulator, own[8 * i]);
    }
  }
  return warp.finish(accumulator, input.word(size - xxh3::kStripe + 8 * warp.own()), size);
}

// Where a tensor has its scratch.
struct Places {
  TensorScratch* tensor_scratch;
  uint64_t* sums;
  Part* parts;

  __device__ Places(const JobTable& table, int index, char* scratch) {
    const Work& work = table.of[index];
    tensor_scratch = reinterpret_cast<TensorScratch*>(scratch) + index;
    sums = reinterpret_cast<uint64_t*>(scratch + work.scratch);
    parts = reinterpret_cast<Part*>(scratch + work.scratch + work.sums_bytes());
  }
};

// Called by all threads of the block whose part of a tensor was ready last.
__device__ void finish(const Work& work, Input input, int64_t count, const Places& places) {
  Digest& out = *work.job.out;
  // An array's own operator is the host's.
  reinterpret_cast<uint32_t*>(&out.exponents)[threadIdx.x] =
      __ldcg(&places.tensor_scratch->exponents[threadIdx.x]);
  if (threadIdx.x / kWarp == 1) put_numbers(out, places.parts, count);
  if (threadIdx.x / kWarp != 0) return;
  const uint64_t hash = hash_from(input, places.sums, reinterpret_cast<uint64_t*>(exponents));
  if (threadIdx.x != 0) return;
  out.hash = hash;
  out.count = input.size() / work.element;
  if (input.rows() == 1 && work.job.row_hashes != nullptr) *work.job.row_hashes = hash;
}

// Whether all parts of a tensor are ready now; for all threads of the block.
__device__ bool is_last(const Places& places, int64_t count) {
  __shared__ bool last;
  if (count == 1) {
    __syncthreads();
    return true;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&places.tensor_scratch->arrived, 1u) == count - 1;
  __syncthreads();
  if (last) __threadfence();
  return last;
}

__global__ __launch_bounds__(kThreads, 2) void digest(const __grid_constant__ JobTable table,
                                                      char* scratch) {
  const int mine = threadIdx.x;
  const int index = table.first.job_of(blockIdx.x, table.count);
  const Work& work = table.of[index];
  const int64_t item = blockIdx.x - table.first.of[index];
  const Input input(work.job);
  if (item >= work.parts) {
    const int64_t row = (item - work.parts) * kWarps + mine / kWarp, bytes = work.job.row_bytes;
    if (input.rows() == 1 || row >= input.rows()) return;
    const uint64_t hash = xxh3::hash(input, row * bytes, bytes);
    if (mine % kWarp == 0) work.job.row_hashes[row] = hash;
    return;
  }
  const int64_t count = max(int64_t{1}, (input.size() + kPart - 1) / kPart);
  if (item >= count) return;
  const Places places(table, index, scratch);
  with_element(work.job.dtype, [&]<typename E>(E, typename E::Wide tiny) {
    sum_part<E>(input, item, tiny, places.sums, &places.parts[item], places.tensor_scratch);
  });
  if (is_last(places, count)) finish(work, input, count, places);
}

struct Launch {
  JobTable table;
  int64_t blocks = 0, tensor_scratch_bytes = 0, scratch = 0;  // the latter two in bytes
};

Launch launch_of(std::span<const DigestJob> jobs) {
  check(jobs.size() <= DigestMaker::kMostJobs,
        "{} digests are too many for one launch: ask for {} at most", jobs.size(),
        DigestMaker::kMostJobs);
  Launch launch = {};
  launch.scratch = launch.tensor_scratch_bytes =
      (std::ssize(jobs) * int64_t{sizeof(TensorScratch)} + 15) / 16 * 16;
  for (const DigestJob& job : jobs) {
    launch.table.first.of[launch.table.count] = launch.blocks;
    Work& work = launch.table.of[launch.table.count++];
    work.job = job;
    work.element = size_of(job.dtype);
    check(job.most_rows * job.row_bytes / work.element < int64_t{1} << 32,
          "a digest covers fewer than 2^32 elements, found {}: use a smaller --chunk",
          job.most_rows * job.row_bytes / work.element);
    work.parts = std::max<int64_t>(1, (job.most_rows * job.row_bytes + kPart - 1) / kPart);
    const bool hashes_rows = job.most_rows > 1 && job.row_hashes != nullptr;
    work.row_blocks = hashes_rows ? (job.most_rows + kWarps - 1) / kWarps : 0;
    launch.blocks += work.blocks();
    work.scratch = std::exchange(launch.scratch, launch.scratch + work.bytes());
  }
  check(launch.blocks < int64_t{1} << 31,
        "{} blocks are too many for a launch of digests: ask for fewer", launch.blocks);
  return launch;
}

}  // namespace

void make_digests(std::span<const DigestJob> jobs, void* scratch, CUstream_st* stream) {
  const Launch launch = launch_of(jobs);
  if (launch.blocks == 0) return;
  cuda_check(cudaMemsetAsync(scratch, 0, launch.tensor_scratch_bytes, stream), "cudaMemsetAsync");
  digest<<<static_cast<unsigned>(launch.blocks), kThreads, kExponents * sizeof(uint32_t), stream>>>(
      launch.table, static_cast<char*>(scratch));
  cuda_check(cudaGetLastError(), "the launch of digests");
}

int64_t digest_scratch_bytes(std::span<const DigestJob> jobs) { return launch_of(jobs).scratch; }

}  // namespace lockstep
