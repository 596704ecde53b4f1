#include <cuda_pipeline.h>

#include <utility>

#include "kernels/base/memory.h"
#include "kernels/cuda/digest_input.cuh"

namespace lockstep {
namespace {

using namespace digests;

__device__ double warp_sum_64(double x) {
  for (int other = kWarp / 2; other > 0; other /= 2) x += __shfl_xor_sync(~0u, x, other);
  return x;
}

__device__ bool larger(double a, int64_t a_at, double b, int64_t b_at) {
  if (a_at < 0 || b_at < 0) return a_at >= 0;
  return a == b ? a_at < b_at : a > b;
}

// `a` becomes what both add, m2 apart, which needs the mean of both.
__device__ void add(Part& a, const Part& b) {
  if (b.at >= 0) {
    a.min = a.at < 0 ? b.min : min(a.min, b.min);
    a.max = a.at < 0 ? b.max : max(a.max, b.max);
  }
  if (larger(b.absmax, b.at, a.absmax, a.at)) a.absmax = b.absmax, a.at = b.at;
  a.sum += b.sum, a.sum_abs += b.sum_abs, a.sum_squares += b.sum_squares;
  a.finite += b.finite, a.nan += b.nan, a.pos_inf += b.pos_inf, a.neg_inf += b.neg_inf;
  a.zeros += b.zeros, a.subnormals += b.subnormals;
}

// All of the warp's, for its first lane, in an order that is always the same. Short code, as what
// is done once a block should be: a small tensor takes as long as its instructions take to arrive.
__device__ __noinline__ Part warp_total(Part part) {
#pragma unroll 1
  for (int down = kWarp / 2; down > 0; down /= 2) {
    Part other;
    auto* to = reinterpret_cast<uint32_t*>(&other);
    const auto* from = reinterpret_cast<const uint32_t*>(&part);
#pragma unroll
    for (int i = 0; i < int{sizeof(Part) / 4}; ++i) to[i] = __shfl_down_sync(~0u, from[i], down);
    add(part, other);
  }
  return part;
}

// A thread's words of one block.
struct Words {
  int64_t begin;  // of the block, in the tensor's bytes
  int place;      // of the first word in the block; each next one is a warp's words further
  bool whole;     // all of them are the tensor's
  uint64_t words[4];

  __device__ Words(Input input, const xxh3::Warp& warp, int64_t block)
      : begin(block * xxh3::kBlock), place(warp.place(0)) {
    const char* run = input.run(begin);
    whole = run != nullptr;
    for (int i = 0; i < 4; ++i)
      words[i] =
          whole ? *reinterpret_cast<const uint64_t*>(run + warp.place(i)) : input.tail(at(i));
  }
  __device__ int64_t at(int i) const { return begin + place + i * kWarp * 8; }
};

// Elements of a tensor have few exponents, and lanes that add to one word wait for each other: so
// each lane counts in a column of its own.
constexpr int kExponents = 256 * kWarp;
extern __shared__ __align__(16) uint32_t exponents[];

// The statistics of the elements that a thread has seen so far.
template <typename E>
struct Seen {
  Part part = {.at = -1};
  typename E::Wide least = INFINITY, most = -INFINITY, largest = -1;
  // 1, which the compiler does not know: for that it has an instruction that counts lanes with the
  // same address, and here they all differ.
  uint32_t one = blockDim.x / kThreads;

  // Those from byte `size` on are none of the tensor's.
  __device__ void look_at(const Words& in, int64_t size, typename E::Wide tiny) {
    if (E::kCount <= 4 && in.whole && all_normal(in, tiny)) return look_at_normal(in);
#pragma unroll 1
    for (int w = 0; w < 4; ++w) {
#pragma unroll 1
      for (int i = 0; i < E::kCount; ++i) {
        const int64_t at = in.at(w) + i * kBytes;
        if (at < size) look_at(E::wide(in.words[w], i), at / kBytes, tiny);
      }
    }
  }

  // Nearly all numbers are normal, with nothing to count but their exponents.
  __device__ static bool all_normal(const Words& in, typename E::Wide tiny) {
    bool normal = true;
#pragma unroll
    for (int w = 0; w < 4; ++w)
#pragma unroll
      for (int i = 0; i < E::kCount; ++i) {
        const typename E::Wide x = E::wide(in.words[w], i), magnitude = x < 0 ? -x : x;
        normal &= magnitude >= tiny && isfinite(x);
      }
    return normal;
  }
  __device__ void look_at_normal(const Words& in) {
    int best = -1;  // of the elements, that is larger than any before
#pragma unroll
    for (int w = 0; w < 4; ++w)
#pragma unroll
      for (int i = 0; i < E::kCount; ++i) {
        const typename E::Wide x = E::wide(in.words[w], i), magnitude = x < 0 ? -x : x;
        count_exponent(x);
        least = min(least, x), most = max(most, x);
        if (magnitude > largest) largest = magnitude, best = w * E::kCount + i;
        add_to_sums(x);
      }
    part.finite += 4 * E::kCount;
    if (best >= 0) part.at = in.at(best / E::kCount) / kBytes + best % E::kCount;
  }

  __device__ void look_at(typename E::Wide x, int64_t at, typename E::Wide tiny) {
    const typename E::Wide magnitude = x < 0 ? -x : x;
    count_exponent(x);
    if (!isfinite(x)) {
      part.nan += isnan(x), part.pos_inf += x > 0, part.neg_inf += x < 0;
      return;
    }
    least = min(least, x), most = max(most, x);
    if (magnitude > largest) largest = magnitude, part.at = at;
    ++part.finite, part.zeros += x == 0, part.subnormals += x != 0 && magnitude < tiny;
    add_to_sums(x);
  }

  __device__ void count_exponent(typename E::Wide x) {
    atomicAdd(&exponents[exponent_bin(x) * kWarp + static_cast<int>(threadIdx.x) % kWarp], one);
  }
  __device__ void add_to_sums(double x) {
    part.sum += x, part.sum_abs += fabs(x), part.sum_squares += x * x;
  }

  static constexpr int kBytes = 8 / E::kCount;  // of an element

  __device__ Part total() {
    part.min = least, part.max = most, part.absmax = largest;
    return warp_total(part);
  }
};

// The sum of (x - mean)^2 over a thread's words.
template <typename E>
__device__ double deviation(const Words& in, int64_t size, double mean) {
  double m2 = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
#pragma unroll(E::kCount > 4 ? 1 : E::kCount)
    for (int i = 0; i < E::kCount; ++i) {
      const typename E::Wide x = E::wide(in.words[w], i);
      if ((!in.whole && in.at(w) + i * (8 / E::kCount) >= size) || !isfinite(x)) continue;
      m2 += (x - mean) * (x - mean);
    }
  }
  return m2;
}

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

// The numbers of a part, of which each warp has looked at its blocks, in thread 0.
template <typename E>
__device__ Part block_total(Input input, int64_t index, Seen<E>& seen) {
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
    mean = all.finite > 0 ? all.sum / all.finite : 0;
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
  Seen<E> seen;
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

__device__ void sum_part(DType dtype, Input input, int64_t index, uint64_t* sums, Part* to,
                         TensorScratch* tensor_scratch) {
  const auto part = [&]<typename T, typename W>(Element<T, W>, W tiny) {
    sum_part<Element<T, W>>(input, index, tiny, sums, to, tensor_scratch);
  };
  switch (dtype) {
    case DType::bf16:
      return part(Element<__nv_bfloat16, float>{}, 0x1p-126f);
    case DType::f16:
      return part(Element<__half, float>{}, 0x1p-14f);
    case DType::f32:
      return part(Element<float, float>{}, 0x1p-126f);
    case DType::f64:
      return part(Element<double, double>{}, 0x1p-1022);
    // Zero is the only whole number below 1, and it counts as zero.
    case DType::i32:
      return part(Element<int32_t, double>{}, 1.0);
    case DType::i64:
      return part(Element<int64_t, double>{}, 1.0);
    case DType::u8:
      return part(Element<uint8_t, float>{}, 1.0f);
  }
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

__device__ Part fetched(const Part* from) {
  Part part;
  auto* to = reinterpret_cast<uint64_t*>(&part);
  for (int i = 0; i < int{sizeof(Part) / 8}; ++i)
    to[i] = __ldcg(reinterpret_cast<const unsigned long long*>(from) + i);
  return part;
}

// The numbers of a digest by one warp, from those of its parts.
__device__ void put_numbers(Digest& out, const Part* parts, int64_t count) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  Part all = {};
  all.at = -1;
  for (int64_t i = lane; i < count; i += kWarp) add(all, fetched(&parts[i]));
  if (count > 1) all = warp_total(all);
  double mean = all.finite > 0 ? all.sum / all.finite : 0;
  mean = __shfl_sync(~0u, mean, 0);
  double m2 = 0;
  for (int64_t i = lane; i < count; i += kWarp) {
    const Part part = fetched(&parts[i]);
    if (part.finite == 0) continue;
    const double delta = part.sum / part.finite - mean;
    m2 += part.m2 + part.finite * delta * delta;
  }
  m2 = warp_sum_64(m2);
  if (lane != 0) return;
  out.nan = all.nan, out.pos_inf = all.pos_inf, out.neg_inf = all.neg_inf;
  out.zeros = all.zeros, out.subnormals = all.subnormals;
  out.min = all.min, out.max = all.max, out.absmax = all.absmax, out.absmax_index = all.at;
  out.mean = mean, out.m2 = m2, out.sum_abs = all.sum_abs, out.sum_squares = all.sum_squares;
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
                                                      char* scratch, BadIndex* bad) {
  const int mine = threadIdx.x;
  const int index = table.first.job_of(blockIdx.x, table.count);
  const Work& work = table.of[index];
  const int64_t item = blockIdx.x - table.first.of[index];
  const Input input(work);
  if (item >= work.parts) {
    const int64_t row = (item - work.parts) * kWarps + mine / kWarp, bytes = work.job.row_bytes;
    if (input.rows() == 1) return;
    await_ready(work.job.ready, input.size() / work.element, bytes / work.element, bad);
    if (row >= input.rows()) return;
    const uint64_t hash = xxh3::hash(input, row * bytes, bytes);
    if (mine % kWarp == 0) work.job.row_hashes[row] = hash;
    return;
  }
  const int64_t count = max(int64_t{1}, (input.size() + kPart - 1) / kPart);
  if (item >= count) return;
  const Places places(table, index, scratch);
  await_ready(work.job.ready, min((item + 1) * kPart, input.size()) / work.element - 1,
              work.job.row_bytes / work.element, bad);
  sum_part(work.job.dtype, input, item, places.sums, &places.parts[item], places.tensor_scratch);
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
      launch.table, static_cast<char*>(scratch), bad_index_report());
  cuda_check(cudaGetLastError(), "the launch of digests");
}

int64_t digest_scratch_bytes(std::span<const DigestJob> jobs) { return launch_of(jobs).scratch; }

}  // namespace lockstep
