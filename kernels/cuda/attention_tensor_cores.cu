// Prefill on tensor cores where the warpgroup instructions of capability 9.0 are not to be had: a
// warp has a q tile of sixteen rows, and the four warps of a block share the keys that any of them
// sees, in blocks of 32, with the next block under way (cp.async) while they compute.
#include "kernels/cuda/attention_tile.cuh"

namespace lockstep {
namespace {

constexpr int kStages = 2;  // blocks of keys in shared memory: one worked on, one on its way

// Updates a tile with a block of keys: scores, online softmax, output sums.
template <typename T, int kDim>
__device__ void process_block(const AttentionArguments<T>& a, Tile<T, kDim>& tile,
                              const KvBlock<T, kDim>& block, int first, const KeyRange& loaded) {
  float p[kBlockKeys / 8][4];
  const bool all = tile.all_visible(first);
  tile.score(a, block, first, all, p);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float row_max = fmaxf(tile.softmax[half].row_max, tile.block_row_max(p, half));
    tile.rescale(half, row_max, tile.exp_scores(p, half, row_max));
  }
  const bool mask_rows = !all && tile.needs_row_masks(block, first, loaded);
#pragma unroll
  for (int step = 0; step < kBlockKeys / 16; ++step) {
    uint32_t probs[kTerms<T>][4];
    split_scores<T, 2>(p, step, probs);
    tile.accumulate_pv(block, first, step, probs, mask_rows);
  }
}

constexpr int kWarps = 4;  // of a block, a tile each
constexpr int kThreads = kWarps * kWarp;

// The shared memory of a block. The sums over all splits lie here because registers hold those of
// the current split.
template <typename T, int kDim>
struct Shared {
  KvBlock<T, kDim> blocks[kStages];
  float4 acc[kDim / 8][kThreads];  // over all splits, a thread's own
};

// The grid is one-dimensional: q tiles of 64 rows times K/V heads, the longest contexts first for
// all heads, because what begins last must not take long. Each of the four warps has 16 rows; the
// keys and values are loaded for all of them, through two stages:
//
//   stage 0   load block 0 | compute block 0  | load block 2    | compute block 2
//   stage 1                | load block 1     | compute block 1 | load block 3
template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, 3) attend_tiles(AttentionArguments<T> a) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& [blocks, all_acc] = *reinterpret_cast<Shared<T, kDim>*>(memory);
  pdl_launch_dependents_and_wait();
  const int warp = threadIdx.x / kWarp, index = gridDim.x - 1 - blockIdx.x,
            kv_head = index % a.kv_heads;
  if (blockIdx.x == 0 && warp == 0) check_batch(a);
  int q_tile = index / a.kv_heads;
  const Queries queries = locate_q_tile(a, a.group, kWarps * kTileRows, q_tile);
  if (queries.request < 0) return;
  const int first_row = q_tile * kWarps * kTileRows;
  const KeyRange keys = visible_to_any(a, queries, first_row, kWarps * kTileRows);
  Tile<T, kDim> tile;
  tile.begin(a, queries, kv_head, first_row + warp * kTileRows);
  tile.begin_split();
  Softmax softmax[2];
  const auto acc = [&](int n) -> float4& { return all_acc[n][threadIdx.x]; };
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) acc(n) = {};
  const auto begin = [&](KvBlock<T, kDim>& block, int64_t offset) {
    const KvTileLoader<T, kDim, kThreads> loader(offset);
    loader.load(block.k, a.k);
    loader.load(block.v, a.v);
  };
  int at = keys.begin / kBlockKeys * kBlockKeys;
  begin(blocks[0], locate_key(a, queries, kv_head, at, keys));
  cp_async_commit_group();
  // The lookup runs one block ahead, because a page table is as far away as the keys.
  int64_t next = locate_key(a, queries, kv_head, at + kBlockKeys, keys);
  for (int stage = 0; at < keys.end; at += kBlockKeys, stage ^= 1) {
    if (at + kBlockKeys < keys.end) begin(blocks[stage ^ 1], next);
    next = locate_key(a, queries, kv_head, at + 2 * kBlockKeys, keys);
    cp_async_commit_group();
    cp_async_wait_group();
    __syncthreads();
    if (at < tile.any.end && at + kBlockKeys > tile.any.begin)
      process_block(a, tile, blocks[stage], at, keys);
    __syncthreads();  // before what was read is overwritten
    if ((at + kBlockKeys) % kSplitKeys == 0 || at + kBlockKeys >= keys.end) {
      tile.end_split();
      tile.merge_into(softmax, acc);
      tile.begin_split();
    }
  }
  write_out(a, tile, softmax, acc);
}

template <typename T, int kDim>
void launch(const OpContext& context, const AttentionArguments<T>& a) {
  constexpr unsigned kBytes = sizeof(Shared<T, kDim>);
  grant_shared<attend_tiles<T, kDim>>(kBytes);
  const unsigned blocks = max_q_tiles(a, kWarps * kTileRows) * a.kv_heads;
  launch_pdl("paged_attention", context.stream, blocks, {kThreads, kBytes}, attend_tiles<T, kDim>,
             a);
}

}  // namespace

template <typename T>
bool attend_on_tensor_cores(const OpContext& context, const AttentionArguments<T>& a) {
  return dispatch_tile(a, [&]<int kDim>() { launch<T, kDim>(context, a); });
}

template bool attend_on_tensor_cores(const OpContext&, const AttentionArguments<float>&);
template bool attend_on_tensor_cores(const OpContext&, const AttentionArguments<__half>&);
template bool attend_on_tensor_cores(const OpContext&, const AttentionArguments<__nv_bfloat16>&);

}  // namespace lockstep
