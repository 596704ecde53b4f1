#include "kernels/cuda/attention_splits.cuh"

namespace lockstep {
namespace {

// The grid is (q tiles of 16 rows, K/V heads, splits), and a block takes every gridDim.z-th split
// from blockIdx.z on:
//
//   cp.async   K0 V0 | K1 of one query    V1 ..           K and V of the next split are in flight
//   compute          | S0    P0 V0  write | S1   P1 V1    while the partial result is written
//
// All of a split is in flight before the first of it is needed. The keys of the next split of a
// single query follow as soon as these have been scored, everything else when these are done.
template <typename T, int kDim>
__global__ void __launch_bounds__(kBlocks* kWarp, 3) attend_splits(AttentionArguments<T> a) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto& split = *reinterpret_cast<SplitBuffers<T, kDim>*>(shared);
  pdl_launch_dependents();
  const int warp = threadIdx.x / kWarp, kv_head = blockIdx.y;
  if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && warp == 0) check_batch(a);
  int q_tile = blockIdx.x;
  const Queries queries = locate_q_tile(a, a.group, kTileRows, q_tile);
  if (queries.request < 0) return pdl_wait();
  const KeyRange all = visible_to_any(a, queries, q_tile * kTileRows, kTileRows);
  const KeyRange visible = a.partials == nullptr ? all : within_splits(a, queries, all);
  const bool one = queries.rows(a) == a.group && a.group <= kLowerRows;
  const int stride = static_cast<int>(gridDim.z) * kSplitKeys;
  int first = static_cast<int>(blockIdx.z) * kSplitKeys;
  while (first + kSplitKeys <= visible.begin) first += stride;
  if (first >= visible.end && a.partials != nullptr) return pdl_wait();
  SplitLoader<T, kDim, kBlocks> loader{a, split, queries, visible, kv_head};
  loader.find(first);
  pdl_wait();  // for the keys and q: the rest was there
  loader.load_keys(), cp_async_commit_group();
  loader.load_values(), cp_async_commit_group();
  Tile<T, kDim, kColumnsPerWarp<kDim, kBlocks>> tile;
  tile.column = warp * kColumnsPerWarp<kDim, kBlocks>;
  tile.begin(a, queries, kv_head, q_tile * kTileRows);
  OneQuery<T, kDim, kColumnsPerWarp<kDim, kBlocks>> query(queries, kv_head, tile.column);
  for (bool more = true; more; first += stride) {
    more = first + stride < visible.end;
    if (more) loader.find(first + stride);
    cp_async_wait_group();
    __syncwarp();
    const auto scored = [&] {
      if (more && one) loader.load_keys();
      cp_async_commit_group();  // of no keys too, so that the values are the older ones
    };
    const WantedBlocks wanted = {first, loader.keys_of(first)};
    if (one)
      query.process_split(a, split, tile, wanted, scored);
    else
      process_split(a, split, tile, wanted, scored);
    if (more) {
      __syncthreads();  // before what was read is overwritten
      if (!one) loader.load_keys(), cp_async_commit_group();
      loader.load_values(), cp_async_commit_group();
    }
    // More than one split without partials means a page table that is too short, which makes NaN.
    if (a.partials == nullptr && more) continue;
    if (a.partials == nullptr) return one ? query.write_out(a) : write_only(a, tile);
    const int at = first / kSplitKeys;
    if (one)
      query.write_partial(a, a.partial(queries.first, kv_head * a.group, at),
                          a.kv_splits * a.partial_size());
    else
      write_partial(tile,
                    [&](int half) { return a.partial(tile.token[half], tile.head[half], at); });
  }
}

// A block takes two splits, so that the keys of the second are on their way while the first is
// computed, where that leaves blocks enough for any device; and more where there are very many.
constexpr int64_t kEnoughBlocks = 1024, kManyBlocks = 8192;

template <typename T, int kDim>
void launch(const OpContext& context, const AttentionArguments<T>& a) {
  constexpr unsigned kBytes = sizeof(SplitBuffers<T, kDim>);
  grant_shared<attend_splits<T, kDim>>(kBytes);
  const int64_t tiles = max_q_tiles(a, kTileRows);
  const int64_t all = tiles * a.kv_heads * a.kv_splits;
  const int64_t each =
      std::clamp<int64_t>(all / kEnoughBlocks, 1, std::max<int64_t>(2, all / kManyBlocks));
  const dim3 blocks(tiles, a.kv_heads, (a.kv_splits + each - 1) / each);
  launch_pdl("paged_attention", context.stream, blocks, {kBlocks * kWarp, kBytes},
             attend_splits<T, kDim>, a);
}

}  // namespace

template <typename T>
bool attend_splits_on_tensor_cores(const OpContext& context, const AttentionArguments<T>& a) {
  return dispatch_tile(a, [&]<int kDim>() { launch<T, kDim>(context, a); });
}

template bool attend_splits_on_tensor_cores(const OpContext&, const AttentionArguments<float>&);
template bool attend_splits_on_tensor_cores(const OpContext&, const AttentionArguments<__half>&);
template bool attend_splits_on_tensor_cores(const OpContext&,
                                            const AttentionArguments<__nv_bfloat16>&);

}  // namespace lockstep
