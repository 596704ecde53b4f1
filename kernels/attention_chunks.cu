#include "kernels/attention_tile.cuh"

namespace lockstep {
namespace {

constexpr int kBlocks = kChunkKeys / kBlockKeys;  // of a chunk; a warp each

// The columns of the output that each of so many warps sums.
template <int kDim, int kTeam>
constexpr int kShare = (kDim / 16 + kTeam - 1) / kTeam * 16;

// What the warps tell each other.
template <typename T, int kDim>
struct Chunk {
  static constexpr int kSteps = kBlockKeys / 16;
  static constexpr int kWeights = kSteps * kParts<T> * kWarp;  // of a block
  static constexpr bool kInPlace = sizeof(Block<T, kDim>::k) >= kWeights * sizeof(uint4);

  Block<T, kDim> blocks[kBlocks];
  uint4 apart[kInPlace ? 1 : kBlocks * kWeights];
  float most[kBlocks][kTileRows];
  float total[kBlocks][2][kWarp];

  // Where this lane's share of a block's weights is: in the place of the
  // block's keys, if that is large enough.
  __device__ uint4& weights(int block, int step, int part) {
    uint4* all = kInPlace ? reinterpret_cast<uint4*>(blocks[block].k) : apart + block * kWeights;
    return all[(step * kParts<T> + part) * kWarp + threadIdx.x % kWarp];
  }
};

template <typename T, int kDim, int kColumns>
__device__ void write_part(const AttentionArguments<T>& a, const Tile<T, kDim, kColumns>& tile,
                           int64_t chunk) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (tile.token[half] < 0) continue;
    float* to = a.part(tile.token[half], tile.head[half], chunk);
    if (tile.column == 0 && lane % 4 == 0)
      to[0] = tile.softmax[half].most, to[1] = tile.softmax[half].total;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
      if (tile.has_column(n * 8))
        *reinterpret_cast<float2*>(to + 2 + tile.column + n * 8 + lane % 4 * 2) = {
            tile.sums[n][2 * half], tile.sums[n][2 * half + 1]};
  }
}

// The scores of the warp's own block, turned into weights for all warps:
// relative to the largest score up to and with this block.
template <int kHalves, typename T, int kDim, int kColumns, typename Taken>
__device__ void score_block(const AttentionArguments<T>& a, Chunk<T, kDim>& chunk,
                            Tile<T, kDim, kColumns>& tile, int first, Taken taken) {
  const int lane = static_cast<int>(threadIdx.x % kWarp),
            warp = static_cast<int>(threadIdx.x / kWarp);
  float p[kBlockKeys / 8][4];
  if (taken(warp)) {
    const int at = first + warp * kBlockKeys;
    tile.score(a, chunk.blocks[warp], at, tile.sees_all(at), p);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const float most = tile.most_of(p, half);
      if (lane % 4 == 0) chunk.most[warp][lane / 4 + 8 * half] = most;
    }
  }
  __syncthreads();
  if (!taken(warp)) return;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    float most = kNothing;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
      if (b <= warp && taken(b)) most = fmaxf(most, chunk.most[b][lane / 4 + 8 * half]);
    chunk.total[warp][half][lane] = tile.soften(p, half, most);
  }
#pragma unroll
  for (int step = 0; step < Chunk<T, kDim>::kSteps; ++step) {
    uint32_t weights[kParts<T>][4];
    split_scores<T, kHalves>(p, step, weights);
#pragma unroll
    for (int part = 0; part < kParts<T>; ++part)
      chunk.weights(warp, step, part) = {weights[part][0], weights[part][1], weights[part][2],
                                         weights[part][3]};
  }
}

// Softmax and sums of the chunk in a tile of which kHalves have rows: first a
// warp scores each block, then each warp sums its columns over all of them, in
// their order. Both give the bits that one warp alone would.
template <int kHalves, typename T, int kDim, int kColumns>
__device__ void take_chunk(const AttentionArguments<T>& a, Chunk<T, kDim>& chunk,
                           Tile<T, kDim, kColumns>& tile, int first, const KeyRange& keys) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const auto taken = [&](int block) {
    const int at = first + block * kBlockKeys;
    return at < keys.end && at + kBlockKeys > keys.begin;
  };
  score_block<kHalves>(a, chunk, tile, first, taken);
  wait_for_all();
  __syncthreads();
  tile.begin_chunk();
#pragma unroll 1
  for (int b = 0; b < kBlocks; ++b) {
    if (!taken(b)) continue;
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      tile.grow(half, fmaxf(tile.softmax[half].most, chunk.most[b][lane / 4 + 8 * half]),
                chunk.total[b][half][lane]);
    if (tile.column >= kDim) continue;
    const int at = first + b * kBlockKeys;
    const bool part_rows = !tile.sees_all(at) && tile.must_part_rows(chunk.blocks[b], at, keys);
#pragma unroll
    for (int step = 0; step < Chunk<T, kDim>::kSteps; ++step) {
      uint32_t weights[kParts<T>][4];
#pragma unroll
      for (int part = 0; part < kParts<T>; ++part) {
        const uint4 four = chunk.weights(b, step, part);
        weights[part][0] = four.x, weights[part][1] = four.y;
        weights[part][2] = four.z, weights[part][3] = four.w;
      }
      tile.weigh(chunk.blocks[b], at, step, weights, part_rows);
    }
  }
  tile.end_chunk();
}

// A block takes every gridDim.z-th chunk from blockIdx.z on of the keys of one
// tile and one K/V head (blockIdx.y): all of a chunk is on its way before the
// first of it is needed, and the next one while what this one gave is written. By kTeam warps: one
// for each block of keys, or two, of which the second brings the values.
template <typename T, int kDim, int kTeam>
__global__ void __launch_bounds__(kTeam* kWarp, kTeam == kBlocks ? 3 : 1)
    attend_chunks(AttentionArguments<T> a) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto& chunk = *reinterpret_cast<Chunk<T, kDim>*>(shared);
  let_the_next_begin();
  const int warp = static_cast<int>(threadIdx.x / kWarp), kv_head = static_cast<int>(blockIdx.y);
  const int mine = warp % kBlocks;
  if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && warp == 0) look_at_batch(a);
  int run = static_cast<int>(blockIdx.x);
  const Queries queries = find_run(a, a.group, kTileRows, run);
  if (queries.request < 0) return wait_for_the_kernel_before();
  const KeyRange seen = with_parts(a, queries, seen_by(a, queries, run * kTileRows, kTileRows));
  const bool lower = queries.rows(a) - run * kTileRows <= kTileRows / 2;  // rows alone
  const auto keys_of = [&](int first) -> KeyRange {
    return {max(seen.begin, first), min(seen.end, first + kChunkKeys)};
  };
  const auto place_of_mine = [&](int first) {
    return look_up(a, queries, kv_head, first + mine * kBlockKeys, keys_of(first));
  };
  const auto bring = [&](int64_t place) {
    const Pieces<T, kDim, kWarp> pieces(place);
    if (warp == mine) pieces.bring(chunk.blocks[mine].k, a.k);
    end_group();
    if (warp != mine || kTeam == kBlocks) pieces.bring(chunk.blocks[mine].v, a.v);
    end_group();
  };
  const int stride = static_cast<int>(gridDim.z) * kChunkKeys;
  int first = static_cast<int>(blockIdx.z) * kChunkKeys;
  while (first + kChunkKeys <= seen.begin) first += stride;
  if (first >= seen.end && a.parts != nullptr) return wait_for_the_kernel_before();
  int64_t place = place_of_mine(first);
  wait_for_the_kernel_before();  // for the keys and q: the rest was there
  bring(place);
  constexpr int kColumns = kShare<kDim, kTeam>;
  Tile<T, kDim, kColumns> tile;
  tile.column = warp * kColumns;
  tile.begin(a, queries, kv_head, run * kTileRows);
  for (bool more = true; more; first += stride) {
    more = first + stride < seen.end;
    if (more) place = place_of_mine(first + stride);
    wait_for_older();
    __syncwarp();
    if (lower)
      take_chunk<1>(a, chunk, tile, first, keys_of(first));
    else
      take_chunk<2>(a, chunk, tile, first, keys_of(first));
    if (more) {
      __syncthreads();  // before what was read is overwritten
      bring(place);
    }
    if (a.parts != nullptr) write_part(a, tile, first / kChunkKeys);
  }
  if (a.parts != nullptr) return;
  Softmax softmax[2];
  float4 all[kColumns / 8] = {};
  const auto sums = [&](int n) -> float4& { return all[n]; };
  tile.join_to(softmax, sums);
  write_out(a, tile, softmax, sums);
}

// Blocks that keep any device busy to the end, though each takes several chunks.
constexpr int64_t kManyBlocks = 4096;
// Blocks of which each has a multiprocessor of an H200 for itself: the time is that of one block.
constexpr int64_t kFewBlocks = 132;

template <typename T, int kDim, int kTeam>
void launch(const OpContext& context, const AttentionArguments<T>& a) {
  constexpr auto kBytes = static_cast<unsigned>(sizeof(Chunk<T, kDim>));
  grant_shared<attend_chunks<T, kDim, kTeam>>(kBytes);
  const int64_t tiles = most_runs(a, kTileRows);
  const int64_t each = std::max<int64_t>(1, tiles * a.kv_heads * a.chunks / kManyBlocks);
  const dim3 blocks(static_cast<unsigned>(tiles), static_cast<unsigned>(a.kv_heads),
                    static_cast<unsigned>((a.chunks + each - 1) / each));
  launch_early("paged_attention", context.stream, blocks, {kTeam * kWarp, kBytes},
               attend_chunks<T, kDim, kTeam>, a);
}

}  // namespace

template <typename T>
bool attend_chunks_on_tensor_cores(const OpContext& context, const AttentionArguments<T>& a) {
  const bool few = most_runs(a, kTileRows) * a.kv_heads * a.chunks <= kFewBlocks;
  return dispatch_tile(a, [&]<int kDim>() {
    if (few)
      launch<T, kDim, 2 * kBlocks>(context, a);
    else
      launch<T, kDim, kBlocks>(context, a);
  });
}

template bool attend_chunks_on_tensor_cores(const OpContext&, const AttentionArguments<float>&);
template bool attend_chunks_on_tensor_cores(const OpContext&, const AttentionArguments<__half>&);
template bool attend_chunks_on_tensor_cores(const OpContext&,
                                            const AttentionArguments<__nv_bfloat16>&);

}  // namespace lockstep
