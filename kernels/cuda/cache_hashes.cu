// Hashes of the K and V rows that a pass can read, straight from their pages: the bytes of a
// position are K, then V, hashed as one. Rows of whole stripes, as all usual models have, are
// hashed by groups of lanes that read 16 bytes at a time; others byte by byte, by a warp each.
//
//   grid   caches x requests x chunks of rows; each block finds its cache by FirstBlocks
//   row    position -> page table -> page, slot -> K, V; a page that the pool lacks reads as NaN
//
// The hashes of a request follow those of the requests before it, whose numbers of rows are known
// on the device alone; hence row_hashes_of() adds them up.
#include <utility>

#include "kernels/cuda/digest.cuh"
#include "kernels/cuda/xxh3.cuh"

namespace lockstep {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kGroups = kWarp / xxh3::Groups::kLanes;
constexpr int64_t kMostRounds = 8;
constexpr int64_t kRoundBytes = 4096;  // of a row, for which a round is worth a block of threads

struct Work {
  CacheJob job;
  unsigned chunks;  // blocks of threads of a request that fills its room
  int rounds;       // in each of which a group of lanes hashes a row

  __host__ __device__ int64_t rows_of_a_block() const { return int64_t{rounds} * kWarps * kGroups; }
};

struct JobTable {
  int count;
  FirstBlocks first;
  Work of[DigestMaker::kMostJobs];
};
static_assert(sizeof(JobTable) <= 32764, "a kernel takes that many bytes of arguments");

__device__ int64_t rows_of(const CacheJob& job, int64_t request) {
  return max(int64_t{0}, min(int64_t{job.rows[request]}, job.most_rows));
}

// The place of the hash of the first row of a request, found by a warp.
__device__ uint64_t* row_hashes_of(const CacheJob& job, int64_t request) {
  int64_t place = 0;
  for (int64_t r = threadIdx.x % kWarp; r < job.requests; r += kWarp)
    place += rows_of(job, r) * (job.cache_index + (r < request ? 1 : 0));
  for (int other = kWarp / 2; other > 0; other /= 2) place += __shfl_xor_sync(~0u, place, other);
  return job.row_hashes + place;
}

// K, then V, of one position; both null in a page that the pool lacks.
struct Row {
  const char *k, *v;
  int64_t bytes;  // of each

  __device__ Row(const CacheJob& job, int64_t request, unsigned position)
      : k(nullptr), v(nullptr), bytes(job.row_bytes) {
    const unsigned size = job.page_size;
    const unsigned entry = position / size;
    const int64_t page = entry < job.width ? job.table[request * job.width + entry] : -1;
    if (page < 0 || page >= job.pages) return;
    const int64_t at = (page * size + position % size) * bytes;
    k = static_cast<const char*>(job.k) + at, v = static_cast<const char*>(job.v) + at;
  }

  // The interface of an input of xxh3::hash.
  __device__ uint64_t byte(int64_t at) const {
    if (k == nullptr) return 0xff;
    return static_cast<uint8_t>(at < bytes ? k[at] : v[at - bytes]);
  }
  __device__ uint64_t half(int64_t at) const { return xxh3::assembled(*this, at, 4); }
  __device__ uint64_t word(int64_t at) const { return xxh3::assembled(*this, at, 8); }
  __device__ static const char* run(int64_t) { return nullptr; }
};

// The bytes that are read in place of a page that the pool lacks, a stripe of them.
__device__ const uint4 kLacking[4] = {
    {~0u, ~0u, ~0u, ~0u}, {~0u, ~0u, ~0u, ~0u}, {~0u, ~0u, ~0u, ~0u}, {~0u, ~0u, ~0u, ~0u}};

// A group of lanes hashes a row; the lanes without a row hash any other one.
__device__ void hash_by_groups(const Work& work, unsigned request, int64_t begin, int64_t rows,
                               uint64_t* out) {
  __shared__ uint64_t secret[xxh3::Groups::kWords];
  const xxh3::Groups groups(secret);
  const int thread = threadIdx.x;
  const int stripes = work.job.row_bytes / xxh3::kStripe;  // of K, and of V
#pragma unroll 1
  for (int round = 0; round < work.rounds; ++round) {
    const int64_t first = begin + (round * kWarps + thread / kWarp) * kGroups;
    if (first >= rows) return;
    const int64_t mine = first + thread % kWarp / xxh3::Groups::kLanes;
    const Row row(work.job, request, min(mine, rows - 1));
    const bool lacks = row.k == nullptr;
    const char* k = lacks ? reinterpret_cast<const char*>(kLacking) : row.k;
    const char* v = lacks ? k : row.v - row.bytes;
    const int step = lacks ? 0 : static_cast<int>(xxh3::kStripe);
    const uint64_t hash = groups.hash(
        2 * stripes, [&](int stripe) { return (stripe < stripes ? k : v) + stripe * step; });
    if (mine < rows && thread % xxh3::Groups::kLanes == 0) out[mine] = hash;
  }
}

// A warp hashes a row, of any size; slower.
__device__ void hash_by_warps(const Work& work, unsigned request, int64_t begin, int64_t rows,
                              uint64_t* out) {
  const int64_t end = min(rows, begin + work.rows_of_a_block());
  for (int64_t mine = begin + threadIdx.x / kWarp; mine < end; mine += kWarps) {
    const Row row(work.job, request, mine);
    const uint64_t hash = xxh3::hash(row, 0, 2 * row.bytes);
    if (threadIdx.x % kWarp == 0) out[mine] = hash;
  }
}

// kStripes: all jobs fit xxh3::Groups.
template <bool kStripes>
__global__ __launch_bounds__(kThreads, 4) void hash_rows(const __grid_constant__ JobTable table,
                                                         BadIndex* bad) {
  const int thread = threadIdx.x;
  const int index = table.first.job_of(blockIdx.x, table.count);
  const Work& work = table.of[index];
  const unsigned item = blockIdx.x - table.first.of[index], request = item / work.chunks;
  const int64_t begin = item % work.chunks * work.rows_of_a_block();
  const int64_t rows = rows_of(work.job, request);
  if (begin == 0 && thread == 0) work.job.hashed[request] = rows;
  if (begin >= rows) return;
  await_ready(work.job.ready, 0, 1, bad);
  uint64_t* out = row_hashes_of(work.job, request);
  if constexpr (kStripes)
    hash_by_groups(work, request, begin, rows, out);
  else
    hash_by_warps(work, request, begin, rows, out);
}

bool fits_stripes(const CacheJob& job) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return job.row_bytes % xxh3::kStripe == 0 && 2 * job.row_bytes > xxh3::kShort && aligned(job.k) &&
         aligned(job.v);
}

}  // namespace

void hash_caches(std::span<const CacheJob> jobs, CUstream_st* stream) {
  check(jobs.size() <= DigestMaker::kMostJobs,
        "{} caches are too many for one launch: ask for {} at most", jobs.size(),
        DigestMaker::kMostJobs);
  JobTable table = {};
  int64_t blocks = 0;
  for (const CacheJob& job : jobs) {
    check(job.most_rows < int64_t{1} << 31 && job.page_size < int64_t{1} << 31,
          "a cache of {} positions a request is too long to be hashed: use fewer than 2^31",
          job.most_rows);
    table.first.of[table.count] = blocks;
    Work& work = table.of[table.count++];
    work.job = job;
    work.rounds = static_cast<int>(
        std::clamp<int64_t>(kRoundBytes / std::max<int64_t>(1, 2 * job.row_bytes), 1, kMostRounds));
    // At least one, which says that there are no rows.
    work.chunks = static_cast<unsigned>(std::max<int64_t>(
        1, (job.most_rows + work.rows_of_a_block() - 1) / work.rows_of_a_block()));
    blocks += job.requests * work.chunks;
    check(blocks < int64_t{1} << 31,
          "{} blocks are too many for a launch of cache hashes: hash fewer caches", blocks);
  }
  if (blocks == 0) return;
  const auto kernel = std::ranges::all_of(jobs, fits_stripes) ? hash_rows<true> : hash_rows<false>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(table, bad_index_report());
  cuda_check(cudaGetLastError(), "the launch of cache hashes");
}

}  // namespace lockstep
