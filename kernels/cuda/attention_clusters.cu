// Decode of few requests: every split of a query's keys has a block of its own, and the blocks of
// one query's splits are a cluster, whose shared memory they read from each other. One launch then
// attends and merges, where others need a second kernel and a round trip of the partial results
// through memory. Taken only while all clusters are resident at once (max_active_clusters): beyond
// that the other kernels have more parallel work than this one.
#include <cooperative_groups.h>

#include <array>

#include "kernels/cuda/attention_splits.cuh"

namespace lockstep {
namespace {

constexpr int kMaxSplits = 16;  // blocks of a cluster, on Hopper
constexpr int kTeam = 2 * kBlocks;
constexpr int kThreads = kTeam * kWarp;

template <typename T, int kDim>
struct Shared {
  SplitBuffers<T, kDim> split;
  float partials[kTileRows][kDim + 8];  // as AttentionArguments::partial
};

// Computes the block's own split of a q tile and K/V head into `partials`, or into the output where
// it is the only one. Two warps serve each block of keys, of which the second loads the values.
template <typename T, int kDim>
__device__ void process_own_split(const AttentionArguments<T>& a, Shared<T, kDim>& shared,
                                  const Queries& queries, KeyRange visible, int first_row,
                                  bool only) {
  const int warp = threadIdx.x / kWarp, kv_head = blockIdx.y,
            first = static_cast<int>(blockIdx.z) * kSplitKeys;
  SplitLoader<T, kDim, kTeam> loader{a, shared.split, queries, visible, kv_head};
  loader.find(first);
  pdl_wait();  // for the keys and q: the rest was there
  loader.load_keys(), cp_async_commit_group();
  loader.load_values(), cp_async_commit_group();
  constexpr int kColumns = kColumnsPerWarp<kDim, kTeam>;
  Tile<T, kDim, kColumns> tile;
  tile.column = warp * kColumns;
  tile.begin(a, queries, kv_head, first_row);
  cp_async_wait_group();
  __syncwarp();
  const WantedBlocks wanted = {first, loader.keys_of(first)};
  const auto scored = [] { cp_async_commit_group(); };  // of no keys: the values are the older ones
  if (queries.rows(a) == a.group && a.group <= kLowerRows) {
    OneQuery<T, kDim, kColumns> query(queries, kv_head, tile.column);
    query.process_split(a, shared.split, tile, wanted, scored);
    if (only) return query.write_out(a);
    query.write_partial(a, shared.partials[0], kDim + 8);
  } else {
    process_split(a, shared.split, tile, wanted, scored);
    if (only) return write_only(a, tile);
    const int row = static_cast<int>(threadIdx.x % kWarp) / 4;
    write_partial(tile, [&](int half) { return shared.partials[row + 8 * half]; });
  }
}

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)
// Merges the partial results of the blocks of a cluster, a warp for 32 columns of a row.
template <typename T, int kDim>
__device__ void combine_cluster(const AttentionArguments<T>& a, Shared<T, kDim>& shared,
                                const Queries& queries, int first_row) {
  const auto cluster = cooperative_groups::this_cluster();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int blocks = gridDim.z, kv_head = blockIdx.y;
  const int rows = min(queries.rows(a) - first_row, kTileRows);
  for (int at = warp * blocks + static_cast<int>(blockIdx.z); at < rows * (kDim / kWarp);
       at += kTeam * blocks) {
    const int row = at / (kDim / kWarp), column = at % (kDim / kWarp) * kWarp + lane;
    const int token = queries.first + (first_row + row) / a.group,
              head = kv_head * a.group + (first_row + row) % a.group;
    const int position = queries.position(token);
    const KeyRange visible = visible_keys(a, position);
    const int first = visible.begin / kSplitKeys, end = (visible.end + kSplitKeys - 1) / kSplitKeys;
    Softmax softmax;
    float sum = 0;
    for (int from = first; from < end; from += kMaxSplits)
      sum = merge_splits<kMaxSplits>(
          softmax, sum, from, min(end - from, kMaxSplits), a.kv_splits, kDim, column,
          [&](int split) { return cluster.map_shared_rank(shared.partials[row], split); });
    a.out[(int64_t{token} * a.heads + head) * kDim + column] =
        narrow<T>(scaled(sum, inv_row_sum(softmax, position)));
  }
}
#endif

// The grid is (q tiles of 16 rows, K/V heads, splits), and the blocks along z are one cluster:
//
//   block 0: split 0      block 1: split 1      ..      partial results in shared memory
//        \____________________|____________________/     cluster.sync()
//   every block merges some rows, reading the others' shared memory, and writes the output
template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, 1) attend_cluster(AttentionArguments<T> a) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<T, kDim>*>(memory);
  pdl_launch_dependents();
  if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x < kWarp) check_batch(a);
  int q_tile = blockIdx.x;
  const Queries queries = locate_q_tile(a, a.group, kTileRows, q_tile);
  if (queries.request < 0) return pdl_wait();
  const int first_row = q_tile * kTileRows, first = static_cast<int>(blockIdx.z) * kSplitKeys;
  const KeyRange all = visible_to_any(a, queries, first_row, kTileRows),
                 visible = within_splits(a, queries, all);
  const bool mine = first < visible.end && first + kSplitKeys > visible.begin;
  // Splits beyond the page table make a row NaN when they are merged.
  const bool only = mine && gridDim.z == 1 && visible.end == all.end;
  if (mine)
    process_own_split(a, shared, queries, visible, first_row, only);
  else
    pdl_wait();
  if (only) return;
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  combine_cluster(a, shared, queries, first_row);
  cluster.sync();  // others may still read this shared memory
#endif
}

// The counts of max_active_clusters by blocks, plus one; 0: not yet known.
template <typename T, int kDim>
struct ClusterCounts {
  std::array<int, kMaxSplits + 1> plus_one = {};
};

// How many clusters of that many blocks are resident on the device at once; 0 where the kernel was
// built for devices that have no clusters.
template <typename T, int kDim>
int max_active_clusters(unsigned blocks) {
  int& known = of_current_device<ClusterCounts<T, kDim>>().plus_one.at(blocks);
  if (known > 0) return known - 1;
  cudaFuncAttributes built = {};
  cuda_check(cudaFuncGetAttributes(&built, attend_cluster<T, kDim>), "cudaFuncGetAttributes");
  cuda_check(cudaFuncSetAttribute(attend_cluster<T, kDim>,
                                  cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
             "cudaFuncSetAttribute(NonPortableClusterSizeAllowed)");
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
  constexpr unsigned kBytes = sizeof(Shared<T, kDim>);
  const unsigned kv_splits = a.kv_splits;
  const int64_t tiles = max_q_tiles(a, kTileRows);
  grant_shared<attend_cluster<T, kDim>>(kBytes);
  if (tiles * a.kv_heads > max_active_clusters<T, kDim>(kv_splits)) return false;
  launch_pdl("paged_attention", context.stream,
             {static_cast<unsigned>(tiles), static_cast<unsigned>(a.kv_heads), kv_splits},
             {kThreads, kBytes, kv_splits}, attend_cluster<T, kDim>, a);
  return true;
}

}  // namespace

template <typename T>
bool attend_in_clusters(const OpContext& context, const AttentionArguments<T>& a) {
  if (compute_capability() < 90 || a.kv_splits > kMaxSplits) return false;
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
