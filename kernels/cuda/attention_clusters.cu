#include <cooperative_groups.h>

#include <array>

#include "kernels/cuda/attention_chunks.cuh"

namespace lockstep {
namespace {

constexpr int kMostChunks = 16;  // blocks of a cluster, on Hopper
constexpr int kTeam = 2 * kBlocks;
constexpr int kThreads = kTeam * kWarp;

template <typename T, int kDim>
struct Shared {
  Chunk<T, kDim> chunk;
  float parts[kTileRows][kDim + 8];  // what it gives: see AttentionArguments::part
};

// The block's own chunk of a tile and K/V head, into `parts`, or the output where it is the only
// one: two warps for each block of keys, of which the second brings the values.
template <typename T, int kDim>
__device__ void take(const AttentionArguments<T>& a, Shared<T, kDim>& shared,
                     const Queries& queries, KeyRange seen, int first_row, bool only) {
  const int warp = static_cast<int>(threadIdx.x / kWarp), kv_head = static_cast<int>(blockIdx.y),
            first = static_cast<int>(blockIdx.z) * kChunkKeys;
  Supply<T, kDim, kTeam> supply{a, shared.chunk, queries, seen, kv_head};
  supply.find(first);
  wait_for_the_kernel_before();  // for the keys and q: the rest was there
  supply.bring_keys(), end_group();
  supply.bring_values(), end_group();
  constexpr int kColumns = kShare<kDim, kTeam>;
  Tile<T, kDim, kColumns> tile;
  tile.column = warp * kColumns;
  tile.begin(a, queries, kv_head, first_row);
  wait_for_older();
  __syncwarp();
  const Taken taken = {first, supply.keys_of(first)};
  const auto scored = [] { end_group(); };  // of no keys: the values are the older ones
  if (queries.rows(a) == a.group && a.group <= kLowerRows) {
    OneQuery<T, kDim, kColumns> query(queries, kv_head, tile.column);
    query.take_chunk(a, shared.chunk, tile, taken, scored);
    if (only) return query.write_out(a);
    query.write_part(a, shared.parts[0], kDim + 8);
  } else {
    take_chunk(a, shared.chunk, tile, taken, scored);
    if (only) return write_only(a, tile);
    const int row = static_cast<int>(threadIdx.x % kWarp) / 4;
    write_part(tile, [&](int half) { return shared.parts[row + 8 * half]; });
  }
}

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)
// Joins what the blocks of a cluster have, a warp for 32 columns of a row.
template <typename T, int kDim>
__device__ void join_cluster(const AttentionArguments<T>& a, Shared<T, kDim>& shared,
                             const Queries& queries, int first_row) {
  const auto cluster = cooperative_groups::this_cluster();
  const int warp = static_cast<int>(threadIdx.x / kWarp),
            lane = static_cast<int>(threadIdx.x % kWarp);
  const int blocks = static_cast<int>(gridDim.z), kv_head = static_cast<int>(blockIdx.y);
  const int rows = min(queries.rows(a) - first_row, kTileRows);
  for (int at = warp * blocks + static_cast<int>(blockIdx.z); at < rows * (kDim / kWarp);
       at += kTeam * blocks) {
    const int row = at / (kDim / kWarp), column = at % (kDim / kWarp) * kWarp + lane;
    const int token = queries.first + (first_row + row) / a.group,
              head = kv_head * a.group + (first_row + row) % a.group;
    const int position = queries.position(token);
    const KeyRange seen = seen_from(a, position);
    const int first = seen.begin / kChunkKeys, end = (seen.end + kChunkKeys - 1) / kChunkKeys;
    Softmax softmax;
    float sum = 0;
    for (int from = first; from < end; from += kMostChunks)
      sum = join_chunks<kMostChunks>(
          softmax, sum, from, min(end - from, kMostChunks), a.chunks, kDim, column,
          [&](int chunk) { return cluster.map_shared_rank(shared.parts[row], chunk); });
    a.out[(int64_t{token} * a.heads + head) * kDim + column] =
        narrow<T>(scaled(sum, unit_of(softmax, position)));
  }
}
#endif

// A cluster takes one tile and one K/V head (blockIdx.y), each of its blocks a chunk of the keys.
template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, 1) attend_cluster(AttentionArguments<T> a) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<T, kDim>*>(memory);
  let_the_next_begin();
  if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x < kWarp)
    look_at_batch(a);
  int run = static_cast<int>(blockIdx.x);
  const Queries queries = find_run(a, a.group, kTileRows, run);
  if (queries.request < 0) return wait_for_the_kernel_before();
  const int first_row = run * kTileRows, first = static_cast<int>(blockIdx.z) * kChunkKeys;
  const KeyRange all = seen_by(a, queries, first_row, kTileRows), seen = in_chunks(a, queries, all);
  const bool mine = first < seen.end && first + kChunkKeys > seen.begin;
  // What there is no room for makes NaN of a row when its chunks are joined.
  const bool only = mine && gridDim.z == 1 && seen.end == all.end;
  if (mine)
    take(a, shared, queries, seen, first_row, only);
  else
    wait_for_the_kernel_before();
  if (only) return;
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  join_cluster(a, shared, queries, first_row);
  cluster.sync();  // what others read must stay
#endif
}

// How many clusters of that many blocks a device has room for at once; none where the kernel was
// built for devices that have no clusters.
template <typename T, int kDim>
int room_for_clusters(unsigned blocks) {
  static std::array<int, kMostChunks + 1> room = {};  // 0: not yet known; else one more than that
  int& known = room.at(blocks);
  if (known > 0) return known - 1;
  cudaFuncAttributes built = {};
  cuda_check(cudaFuncGetAttributes(&built, attend_cluster<T, kDim>), "what a kernel is built for");
  cuda_check(cudaFuncSetAttribute(attend_cluster<T, kDim>,
                                  cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
             "clusters of blocks");
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {1, 1, blocks};
  cudaLaunchConfig_t config = {};
  config.gridDim = {1, 1, blocks};
  config.blockDim = kThreads;
  config.dynamicSmemBytes = sizeof(Shared<T, kDim>);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, attend_cluster<T, kDim>, &config) != cudaSuccess) {
    cudaGetLastError();  // a device whose clusters are all smaller says so
    clusters = 0;
  }
  if (built.ptxVersion < 90) clusters = 0;
  known = clusters + 1;
  return clusters;
}

template <typename T, int kDim>
bool launch(const OpContext& context, const AttentionArguments<T>& a) {
  constexpr auto kBytes = static_cast<unsigned>(sizeof(Shared<T, kDim>));
  const auto chunks = static_cast<unsigned>(a.chunks);
  const int64_t tiles = most_runs(a, kTileRows);
  grant_shared<attend_cluster<T, kDim>>(kBytes);
  if (tiles * a.kv_heads > room_for_clusters<T, kDim>(chunks)) return false;
  launch_early("paged_attention", context.stream,
               {static_cast<unsigned>(tiles), static_cast<unsigned>(a.kv_heads), chunks},
               {kThreads, kBytes, chunks}, attend_cluster<T, kDim>, a);
  return true;
}

}  // namespace

template <typename T>
bool attend_in_clusters(const OpContext& context, const AttentionArguments<T>& a) {
  if (compute_capability() < 90 || a.chunks > kMostChunks) return false;
  bool done = false;
  dispatch_tile(a, [&]<int kDim>() {
    if constexpr (kDim % kWarp == 0) done = launch<T, kDim>(context, a);
  });
  return done;
}

template bool attend_in_clusters(const OpContext&, const AttentionArguments<float>&);
template bool attend_in_clusters(const OpContext&, const AttentionArguments<__half>&);
template bool attend_in_clusters(const OpContext&, const AttentionArguments<__nv_bfloat16>&);

}  // namespace lockstep
