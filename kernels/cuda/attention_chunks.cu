#include "kernels/cuda/attention_chunks.cuh"

namespace lockstep {
namespace {

// A block takes every gridDim.z-th chunk from blockIdx.z on of the keys of one tile and one K/V
// head (blockIdx.y): all of a chunk is on its way before the first of it is needed, the next keys
// of one query as soon as these have been scored, and all else that is next while what these gave
// is written.
template <typename T, int kDim>
__global__ void __launch_bounds__(kBlocks* kWarp, 3) attend_chunks(AttentionArguments<T> a) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto& chunk = *reinterpret_cast<Chunk<T, kDim>*>(shared);
  let_the_next_begin();
  const int warp = static_cast<int>(threadIdx.x / kWarp), kv_head = static_cast<int>(blockIdx.y);
  if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && warp == 0) look_at_batch(a);
  int run = static_cast<int>(blockIdx.x);
  const Queries queries = find_run(a, a.group, kTileRows, run);
  if (queries.request < 0) return wait_for_the_kernel_before();
  const KeyRange all = seen_by(a, queries, run * kTileRows, kTileRows);
  const KeyRange seen = a.parts == nullptr ? all : in_chunks(a, queries, all);
  const bool one = queries.rows(a) == a.group && a.group <= kLowerRows;
  const int stride = static_cast<int>(gridDim.z) * kChunkKeys;
  int first = static_cast<int>(blockIdx.z) * kChunkKeys;
  while (first + kChunkKeys <= seen.begin) first += stride;
  if (first >= seen.end && a.parts != nullptr) return wait_for_the_kernel_before();
  Supply<T, kDim, kBlocks> supply{a, chunk, queries, seen, kv_head};
  supply.find(first);
  wait_for_the_kernel_before();  // for the keys and q: the rest was there
  supply.bring_keys(), end_group();
  supply.bring_values(), end_group();
  Tile<T, kDim, kShare<kDim, kBlocks>> tile;
  tile.column = warp * kShare<kDim, kBlocks>;
  tile.begin(a, queries, kv_head, run * kTileRows);
  OneQuery<T, kDim, kShare<kDim, kBlocks>> query(queries, kv_head, tile.column);
  for (bool more = true; more; first += stride) {
    more = first + stride < seen.end;
    if (more) supply.find(first + stride);
    wait_for_older();
    __syncwarp();
    const auto scored = [&] {
      if (more && one) supply.bring_keys();
      end_group();  // of no keys too, so that the values are the older ones
    };
    const Taken taken = {first, supply.keys_of(first)};
    if (one)
      query.take_chunk(a, chunk, tile, taken, scored);
    else
      take_chunk(a, chunk, tile, taken, scored);
    if (more) {
      __syncthreads();  // before what was read is overwritten
      if (!one) supply.bring_keys(), end_group();
      supply.bring_values(), end_group();
    }
    // More than one chunk without parts: no pages are there for the last one, which makes NaN.
    if (a.parts == nullptr && more) continue;
    if (a.parts == nullptr) return one ? query.write_out(a) : write_only(a, tile);
    const int at = first / kChunkKeys;
    if (one)
      query.write_part(a, a.part(queries.first, kv_head * a.group, at), a.chunks * a.part_size());
    else
      write_part(tile, [&](int half) { return a.part(tile.token[half], tile.head[half], at); });
  }
}

// Blocks that keep any device busy to the end, though each takes several chunks.
constexpr int64_t kManyBlocks = 8192;

template <typename T, int kDim>
void launch(const OpContext& context, const AttentionArguments<T>& a) {
  constexpr auto kBytes = static_cast<unsigned>(sizeof(Chunk<T, kDim>));
  grant_shared<attend_chunks<T, kDim>>(kBytes);
  const int64_t tiles = most_runs(a, kTileRows);
  const int64_t each = std::max<int64_t>(1, tiles * a.kv_heads * a.chunks / kManyBlocks);
  const dim3 blocks(static_cast<unsigned>(tiles), static_cast<unsigned>(a.kv_heads),
                    static_cast<unsigned>((a.chunks + each - 1) / each));
  launch_early("paged_attention", context.stream, blocks, {kBlocks * kWarp, kBytes},
               attend_chunks<T, kDim>, a);
}

}  // namespace

template <typename T>
bool attend_chunks_on_tensor_cores(const OpContext& context, const AttentionArguments<T>& a) {
  return dispatch_tile(a, [&]<int kDim>() { launch<T, kDim>(context, a); });
}

template bool attend_chunks_on_tensor_cores(const OpContext&, const AttentionArguments<float>&);
template bool attend_chunks_on_tensor_cores(const OpContext&, const AttentionArguments<__half>&);
template bool attend_chunks_on_tensor_cores(const OpContext&,
                                            const AttentionArguments<__nv_bfloat16>&);

}  // namespace lockstep
