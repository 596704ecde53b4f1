#include "kernels/cuda/attention_tile.cuh"

namespace lockstep {
namespace {

constexpr int kStages = 2;  // blocks of keys in shared memory: one worked on, one on its way

// Takes a block of keys into a tile.
template <typename T, int kDim>
__device__ void take(const AttentionArguments<T>& a, Tile<T, kDim>& tile,
                     const Block<T, kDim>& block, int first, const KeyRange& brought) {
  float p[kBlockKeys / 8][4];
  const bool all = tile.sees_all(first);
  tile.score(a, block, first, all, p);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float most = fmaxf(tile.softmax[half].most, tile.most_of(p, half));
    tile.grow(half, most, tile.soften(p, half, most));
  }
  const bool part_rows = !all && tile.must_part_rows(block, first, brought);
#pragma unroll
  for (int step = 0; step < kBlockKeys / 16; ++step) {
    uint32_t weights[kParts<T>][4];
    split_scores<T, 2>(p, step, weights);
    tile.weigh(block, first, step, weights, part_rows);
  }
}

constexpr int kWarps = 4;  // of a block, a tile each
constexpr int kThreads = kWarps * kWarp;

// What a block has in shared memory: registers would not do for the sums of a
// chunk and those of all chunks too.
template <typename T, int kDim>
struct Shared {
  Block<T, kDim> blocks[kStages];
  float4 sums[kDim / 8][kThreads];  // of all chunks, a thread's own
};

// A block takes kWarps tiles of one request and one K/V head; each tile is a
// warp's, the keys are brought for all. The longest contexts come first, of all
// heads: what begins last must not take long.
template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, 3) attend_tiles(AttentionArguments<T> a) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& [blocks, all_sums] = *reinterpret_cast<Shared<T, kDim>*>(memory);
  after_the_kernel_before();
  const int warp = static_cast<int>(threadIdx.x / kWarp),
            index = static_cast<int>(gridDim.x - 1 - blockIdx.x), kv_head = index % a.kv_heads;
  if (blockIdx.x == 0 && warp == 0) look_at_batch(a);
  int run = index / a.kv_heads;
  const Queries queries = find_run(a, a.group, kWarps * kTileRows, run);
  if (queries.request < 0) return;
  const int first_row = run * kWarps * kTileRows;
  const KeyRange keys = seen_by(a, queries, first_row, kWarps * kTileRows);
  Tile<T, kDim> tile;
  tile.begin(a, queries, kv_head, first_row + warp * kTileRows);
  tile.begin_chunk();
  Softmax softmax[2];
  const auto sums = [&](int n) -> float4& { return all_sums[n][threadIdx.x]; };
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) sums(n) = {};
  const auto begin = [&](Block<T, kDim>& block, int64_t place) {
    const Pieces<T, kDim, kThreads> pieces(place);
    pieces.bring(block.k, a.k);
    pieces.bring(block.v, a.v);
  };
  int at = keys.begin / kBlockKeys * kBlockKeys;
  begin(blocks[0], look_up(a, queries, kv_head, at, keys));
  end_group();
  // Looked up a block before it is used, because a page table lies as far away
  // as the keys.
  int64_t next = look_up(a, queries, kv_head, at + kBlockKeys, keys);
  for (int stage = 0; at < keys.end; at += kBlockKeys, stage ^= 1) {
    if (at + kBlockKeys < keys.end) begin(blocks[stage ^ 1], next);
    next = look_up(a, queries, kv_head, at + 2 * kBlockKeys, keys);
    end_group();
    wait_for_older();
    __syncthreads();
    if (at < tile.any.end && at + kBlockKeys > tile.any.begin)
      take(a, tile, blocks[stage], at, keys);
    __syncthreads();  // before what was read is overwritten
    if ((at + kBlockKeys) % kChunkKeys == 0 || at + kBlockKeys >= keys.end) {
      tile.end_chunk();
      tile.join_to(softmax, sums);
      tile.begin_chunk();
    }
  }
  write_out(a, tile, softmax, sums);
}

template <typename T, int kDim>
void launch(const OpContext& context, const AttentionArguments<T>& a) {
  constexpr auto kBytes = static_cast<unsigned>(sizeof(Shared<T, kDim>));
  grant_shared<attend_tiles<T, kDim>>(kBytes);
  const auto blocks = static_cast<unsigned>(most_runs(a, kWarps * kTileRows) * a.kv_heads);
  launch_early("paged_attention", context.stream, blocks, {kThreads, kBytes}, attend_tiles<T, kDim>,
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
