#include "kernels/attention.cuh"
#include "kernels/tensor_cores.cuh"

namespace lockstep {
namespace {

constexpr int kTileRows = 16;  // rows of one product of the tensor cores: queries and heads
constexpr int kStages = 2;     // blocks of keys in shared memory: one worked on, one on its way

// Whether one of two numbers of a dtype is Inf or NaN.
template <typename T>
__device__ bool not_finite(uint32_t pair) {
  constexpr uint32_t kExponent = std::is_same_v<T, __half> ? 0x7c00 : 0x7f80;
  return (pair & kExponent) == kExponent || (pair >> 16 & kExponent) == kExponent;
}

// A block of keys and values in shared memory. The rows' padding keeps eight of them, at one
// column, in different banks.
template <typename T, int kDim>
struct Block {
  T k[kBlockKeys][kDim + 8];
  T v[kBlockKeys][kDim + 8];
};

// Keys that any of these rows sees: rows are a request's queries times the heads of a group.
template <typename T>
__device__ KeyRange seen_by(const AttentionArguments<T>& a, const Queries& queries,
                            int64_t first_row, int64_t count) {
  const int64_t rows = (queries.end - queries.first) * a.group();
  if (first_row >= rows) return {0, 0};
  const int64_t last_row = min(first_row + count, rows) - 1;
  return {seen_from(a, queries.position(queries.first + first_row / a.group())).begin,
          seen_from(a, queries.position(queries.first + last_row / a.group())).end};
}

// Sixteen rows of queries and heads of one request and one K/V head, worked on by one warp. A lane
// has elements of the rows lane / 4 and lane / 4 + 8: `half` 0 and 1.
template <typename T, int kDim>
struct Tile {
  int64_t token[2];  // of this lane's rows; -1: there is no such row
  int head[2];
  int position[2];
  KeyRange seen[2];  // keys that they see
  KeyRange any;      // keys that any row of the tile sees
  uint32_t q[kDim / 16][4];
  Softmax softmax[2];       // totals of this lane's keys only, until the chunk ends
  float sums[kDim / 8][4];  // of the chunk

  __device__ void begin(const AttentionArguments<T>& a, const Queries& queries, int kv_head,
                        int64_t first_row);
  __device__ void begin_chunk();
  __device__ void end_chunk();
  // Takes the keys from position `first` on that the rows see, of those that were brought.
  __device__ void take(const AttentionArguments<T>& a, const Block<T, kDim>& block, int first,
                       const KeyRange& brought);

 private:
  __device__ void score(const AttentionArguments<T>& a, const Block<T, kDim>& block, int first,
                        float (&p)[kBlockKeys / 8][4]) const;
  __device__ void soften(float (&p)[kBlockKeys / 8][4]);
  __device__ bool must_part_rows(const Block<T, kDim>& block, int first,
                                 const KeyRange& brought) const;
  __device__ void weigh(const Block<T, kDim>& block, const float (&p)[kBlockKeys / 8][4]);
  __device__ void weigh_row_by_row(const Block<T, kDim>& block, int first,
                                   const float (&p)[kBlockKeys / 8][4]);
};

template <typename T, int kDim>
__device__ void Tile<T, kDim>::begin(const AttentionArguments<T>& a, const Queries& queries,
                                     int kv_head, int64_t first_row) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t group = a.group(), rows = (queries.end - queries.first) * group;
  const T* from[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t mine = first_row + lane / 4 + 8 * half;
    const bool exists = mine < rows;
    token[half] = exists ? queries.first + mine / group : -1;
    head[half] = kv_head * static_cast<int>(group) + static_cast<int>(mine % group);
    position[half] = exists ? queries.position(token[half]) : -1;
    seen[half] = exists ? seen_from(a, position[half]) : KeyRange{0, 0};
    from[half] = a.q + (token[half] * a.heads + head[half]) * kDim + lane % 4 * 2;
  }
  any = seen_by(a, queries, first_row, kTileRows);
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      q[step][i] = token[i % 2] < 0
                       ? 0
                       : *reinterpret_cast<const uint32_t*>(from[i % 2] + step * 16 + i / 2 * 8);
}

template <typename T, int kDim>
__device__ void Tile<T, kDim>::begin_chunk() {
  softmax[0] = softmax[1] = {};
#pragma unroll
  for (auto& four : sums)
    for (float& sum : four) sum = 0;
}

// Adds up what the four lanes of a row have of its total.
template <typename T, int kDim>
__device__ void Tile<T, kDim>::end_chunk() {
  for (auto& [most, total] : softmax) {
    total = __fadd_rn(total, __shfl_xor_sync(~0u, total, 1));
    total = __fadd_rn(total, __shfl_xor_sync(~0u, total, 2));
  }
}

template <typename T, int kDim>
__device__ void Tile<T, kDim>::take(const AttentionArguments<T>& a, const Block<T, kDim>& block,
                                    int first, const KeyRange& brought) {
  float p[kBlockKeys / 8][4];
  score(a, block, first, p);
  soften(p);
  if (must_part_rows(block, first, brought))
    weigh_row_by_row(block, first, p);
  else
    weigh(block, p);
}

template <typename T, int kDim>
__device__ void Tile<T, kDim>::score(const AttentionArguments<T>& a, const Block<T, kDim>& block,
                                     int first, float (&p)[kBlockKeys / 8][4]) const {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (auto& four : p)
    for (float& score : four) score = 0;
      // Keys in the inner loop: the products of one key wait for each other.
#pragma unroll
  for (int step = 0; step < kDim / 16; step += 2) {
    uint32_t k[kBlockKeys / 8][4];  // 32 elements each; the last 16 twice where there are no more
    const int column = min(step * 16 + lane / 8 * 8, kDim - 8);
#pragma unroll
    for (int j = 0; j < kBlockKeys / 8; ++j)
      load_matrices<false>(k[j], &block.k[j * 8 + lane % 8][column]);
#pragma unroll
    for (int j = 0; j < kBlockKeys / 8; ++j) multiply_add<T>(p[j], q[step], {k[j][0], k[j][1]});
    if (step + 1 == kDim / 16) continue;
#pragma unroll
    for (int j = 0; j < kBlockKeys / 8; ++j) multiply_add<T>(p[j], q[step + 1], {k[j][2], k[j][3]});
  }
#pragma unroll
  for (int j = 0; j < kBlockKeys / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first + j * 8 + lane % 4 * 2 + i % 2;
      const KeyRange& range = seen[i / 2];
      p[j][i] = key >= range.begin && key < range.end ? __fmul_rn(p[j][i], a.scale) : kNothing;
    }
}

// Turns the scores into probabilities relative to the running maxima, and rescales what was summed
// where one grew.
template <typename T, int kDim>
__device__ void Tile<T, kDim>::soften(float (&p)[kBlockKeys / 8][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = softmax[half].most;
#pragma unroll
    for (const auto& four : p) most = fmaxf(most, fmaxf(four[2 * half], four[2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const float base = base_of(most), shrink = expf(softmax[half].most - base);
    float total = __fmul_rn(softmax[half].total, shrink);
#pragma unroll
    for (auto& four : p)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        four[i] = expf(four[i] - base);
        total = __fadd_rn(total, four[i]);
      }
    softmax[half] = {most, total};
#pragma unroll
    for (auto& four : sums)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) four[i] = __fmul_rn(four[i], shrink);
  }
}

// A product makes NaN of a probability of 0 and a value that is not finite. That is wrong for a row
// that does not see the value, while another row of the tile does.
template <typename T, int kDim>
__device__ bool Tile<T, kDim>::must_part_rows(const Block<T, kDim>& block, int first,
                                              const KeyRange& brought) const {
  const auto all_of = [&](const KeyRange& range) {
    return range.begin <= max(first, brought.begin) &&
           range.end >= min(first + kBlockKeys, brought.end);
  };
  if (__all_sync(~0u, (token[0] < 0 || all_of(seen[0])) && (token[1] < 0 || all_of(seen[1]))))
    return false;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  bool found = false;
  for (int i = 0; i < kDim / 2; ++i)
    found |= not_finite<T>(reinterpret_cast<const uint32_t*>(block.v[lane])[i]);
  return __any_sync(~0u, found);
}

template <typename T, int kDim>
__device__ void Tile<T, kDim>::weigh(const Block<T, kDim>& block,
                                     const float (&p)[kBlockKeys / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int step = 0; step < kBlockKeys / 16; ++step) {
    uint32_t weights[kParts<T>][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &p[step * 2 + i / 2][i % 2 * 2];
      uint32_t parts[kParts<T>];
      split<T>(pair[0], pair[1], parts);
#pragma unroll
      for (int part = 0; part < kParts<T>; ++part) weights[part][i] = parts[part];
    }
    // Several columns at a time: the parts of one sum wait for each other.
    constexpr int kTogether = kDim % 64 == 0 ? 4 : 1;
#pragma unroll
    for (int n = 0; n < kDim / 16; n += kTogether) {
      uint32_t v[kTogether][4];
#pragma unroll
      for (int c = 0; c < kTogether; ++c)
        load_matrices<true>(v[c], &block.v[step * 16 + lane % 16][(n + c) * 16 + lane / 16 * 8]);
#pragma unroll
      for (int part = 0; part < kParts<T>; ++part)
#pragma unroll
        for (int c = 0; c < kTogether; ++c) {
          multiply_add<T>(sums[(n + c) * 2], weights[part], {v[c][0], v[c][1]});
          multiply_add<T>(sums[(n + c) * 2 + 1], weights[part], {v[c][2], v[c][3]});
        }
    }
  }
}

// The same sums, each row for itself, with zeros in place of the values that it does not see.
template <typename T, int kDim>
__device__ void Tile<T, kDim>::weigh_row_by_row(const Block<T, kDim>& block, int first,
                                                const float (&p)[kBlockKeys / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll 1
  for (int r = 0; r < kTileRows; ++r) {
    const int owner = r % 8 * 4;  // a lane that knows what the row sees
    const KeyRange range = {__shfl_sync(~0u, r < 8 ? seen[0].begin : seen[1].begin, owner),
                            __shfl_sync(~0u, r < 8 ? seen[0].end : seen[1].end, owner)};
    const auto masked = [&](uint32_t pair, int key) {
      const uint32_t low = key >= range.begin && key < range.end ? 0xffffu : 0u;
      const uint32_t high = key + 1 >= range.begin && key + 1 < range.end ? 0xffff0000u : 0u;
      return pair & (low | high);
    };
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      float sum[4] = {sums[n][0], sums[n][1], sums[n][2], sums[n][3]};
#pragma unroll
      for (int step = 0; step < kBlockKeys / 16; ++step) {
        uint32_t v[4];  // the second two are not used
        load_matrices<true>(v, &block.v[step * 16 + lane % 16][n * 8]);
        const int key = first + step * 16 + lane % 4 * 2;
        const uint32_t b[2] = {masked(v[0], key), masked(v[1], key + 8)};
        uint32_t parts[4][kParts<T>];
        for (int i = 0; i < 4; ++i)
          split<T>(p[step * 2 + i / 2][i % 2 * 2], p[step * 2 + i / 2][i % 2 * 2 + 1], parts[i]);
        for (int part = 0; part < kParts<T>; ++part)
          multiply_add<T>(sum, {parts[0][part], parts[1][part], parts[2][part], parts[3][part]}, b);
      }
      // Not sums[n][r / 8 * 2]: an index that is only known at run time costs the registers.
      const bool mine = lane / 4 == r % 8;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (mine && i / 2 == r / 8) sums[n][i] = sum[i];
    }
  }
}

constexpr int64_t kZeros = -2;  // the place of a key that nobody wants

// Where the key of this lane lies, in a block that begins at position `first`.
template <typename T>
__device__ int64_t look_up(const AttentionArguments<T>& a, const Queries& queries, int kv_head,
                           int first, KeyRange wanted) {
  const int key = first + static_cast<int>(threadIdx.x % kWarp);
  if (key < wanted.begin || key >= wanted.end) return kZeros;
  return place_of(a, queries, kv_head, key);
}

// Begins to bring the keys of a block that lie at the lanes' places.
template <typename T, int kDim, int kThreads>
__device__ void bring(const AttentionArguments<T>& a, Block<T, kDim>& block, int64_t mine) {
  constexpr int kPerRow = kDim * 2 / 16, kPieces = kBlockKeys * kPerRow;
#pragma unroll
  for (int base = 0; base < kPieces; base += kThreads) {
    const int piece = base + static_cast<int>(threadIdx.x);
    const int row = min(piece / kPerRow, kBlockKeys - 1), column = piece % kPerRow * 8;
    const int64_t place = __shfl_sync(~0u, mine, row);
    if (piece >= kPieces) break;
    if (place == -1) {  // NaN, for a page that there is not
      memset(&block.k[row][column], 0xff, 16);
      memset(&block.v[row][column], 0xff, 16);
      continue;
    }
    const int64_t from = max(place, int64_t{0}) + column;
    begin_copy(&block.k[row][column], a.k + from, place == kZeros);
    begin_copy(&block.v[row][column], a.v + from, place == kZeros);
  }
}

template <int kThreads>
__device__ void synchronise() {
  if constexpr (kThreads == kWarp)
    __syncwarp();
  else
    __syncthreads();
}

template <typename T, int kDim>
__device__ void write_part(const AttentionArguments<T>& a, const Tile<T, kDim>& tile,
                           int64_t chunk) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (tile.token[half] < 0) continue;
    float* to = a.part(tile.token[half], tile.head[half], chunk);
    if (lane % 4 == 0) to[0] = tile.softmax[half].most, to[1] = tile.softmax[half].total;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
      for (int i = 0; i < 2; ++i) to[2 + n * 8 + lane % 4 * 2 + i] = tile.sums[n][2 * half + i];
  }
}

template <typename T, int kDim>
__device__ void write_out(const AttentionArguments<T>& a, const Tile<T, kDim>& tile,
                          const Softmax (&softmax)[2], const float (&sums)[kDim / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (tile.token[half] < 0) continue;
    const float unit = unit_of(softmax[half], tile.position[half]);
    T* to = a.out + (tile.token[half] * a.heads + tile.head[half]) * kDim + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
      *reinterpret_cast<uint32_t*>(to + n * 8) =
          pair_of(narrow<T>(scaled(sums[n][2 * half], unit)),
                  narrow<T>(scaled(sums[n][2 * half + 1], unit)));
  }
}

// A block takes kWarps tiles of one request, one K/V head (blockIdx.y) and, where kApart, one chunk
// (blockIdx.z); each tile is a warp's, the keys are brought for all.
template <typename T, int kDim, int kWarps, bool kApart>
__global__ void __launch_bounds__(kWarps* kWarp) attend_tiles(AttentionArguments<T> a) {
  constexpr int kThreads = kWarps * kWarp;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* blocks = reinterpret_cast<Block<T, kDim>*>(shared);
  const int warp = static_cast<int>(threadIdx.x / kWarp), kv_head = static_cast<int>(blockIdx.y);
  if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && warp == 0) look_at_batch(a);
  int64_t run = static_cast<int64_t>(gridDim.x) - 1 - blockIdx.x;  // the longest first
  const Queries queries = find_run(a, a.group(), kWarps * kTileRows, run);
  if (queries.request < 0) return;
  const int64_t first_row = run * kWarps * kTileRows;
  KeyRange keys = seen_by(a, queries, first_row, kWarps * kTileRows);
  if constexpr (kApart) {
    keys.begin = max(keys.begin, static_cast<int>(blockIdx.z) * kChunkKeys);
    keys.end = min(keys.end, (static_cast<int>(blockIdx.z) + 1) * kChunkKeys);
    if (keys.begin >= keys.end) return;
  }
  Tile<T, kDim> tile;
  tile.begin(a, queries, kv_head, first_row + warp * kTileRows);
  tile.begin_chunk();
  Softmax softmax[2];
  float sums[kDim / 8][4] = {};
  int at = keys.begin / kBlockKeys * kBlockKeys;
  bring<T, kDim, kThreads>(a, blocks[0], look_up(a, queries, kv_head, at, keys));
  end_group();
  // Looked up a block before it is used, because a page table lies as far away as the keys.
  int64_t next = look_up(a, queries, kv_head, at + kBlockKeys, keys);
  for (int stage = 0; at < keys.end; at += kBlockKeys, stage ^= 1) {
    if (at + kBlockKeys < keys.end) bring<T, kDim, kThreads>(a, blocks[stage ^ 1], next);
    next = look_up(a, queries, kv_head, at + 2 * kBlockKeys, keys);
    end_group();
    wait_for_older();
    synchronise<kThreads>();
    if (at < tile.any.end && at + kBlockKeys > tile.any.begin)
      tile.take(a, blocks[stage], at, keys);
    synchronise<kThreads>();  // before what was read is overwritten
    if (!kApart && ((at + kBlockKeys) % kChunkKeys == 0 || at + kBlockKeys >= keys.end)) {
      tile.end_chunk();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Join joined = join(softmax[half], tile.softmax[half]);
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i)
            sums[n][i] = joined(sums[n][i], tile.sums[n][i]);
      }
      tile.begin_chunk();
    }
  }
  if constexpr (kApart) {
    tile.end_chunk();
    write_part(a, tile, blockIdx.z);
  } else {
    write_out(a, tile, softmax, sums);
  }
}

template <typename T, int kDim, int kWarps, bool kApart>
void launch(const OpContext& context, const AttentionArguments<T>& a) {
  constexpr auto kBytes = static_cast<int>(kStages * sizeof(Block<T, kDim>));
  const auto kernel = attend_tiles<T, kDim, kWarps, kApart>;
  static const cudaError_t granted =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  cuda_check(granted, "shared memory");
  // As many runs of rows as there can be, however the tokens are shared by the requests.
  const int64_t runs =
      std::min(a.tokens * (a.heads / a.kv_heads) / (kWarps * kTileRows) + a.requests,
               a.tokens * ((a.heads / a.kv_heads) / (kWarps * kTileRows) + 1));
  const dim3 blocks(static_cast<unsigned>(runs), static_cast<unsigned>(a.kv_heads),
                    kApart ? static_cast<unsigned>(a.chunks) : 1);
  kernel<<<blocks, kWarps * kWarp, kBytes, context.stream>>>(a);
  cuda_check(cudaGetLastError(), "the launch of paged_attention on the tensor cores");
}

template <typename T, int kDim>
void launch_mode(const OpContext& context, const AttentionArguments<T>& a) {
  if (a.parts != nullptr)
    launch<T, kDim, 1, true>(context, a);
  else
    launch<T, kDim, 4, false>(context, a);
}

}  // namespace

template <typename T>
bool attend_on_tensor_cores(const OpContext& context, const AttentionArguments<T>& a) {
  if constexpr (std::is_same_v<T, float>) {
    return false;
  } else {
    if (!aligned_16(0, a.out, a.q, a.k, a.v)) return false;
    if (a.head_dim == 16)
      launch_mode<T, 16>(context, a);
    else if (a.head_dim == 32)
      launch_mode<T, 32>(context, a);
    else if (a.head_dim == 64)
      launch_mode<T, 64>(context, a);
    else if (a.head_dim == 80)
      launch_mode<T, 80>(context, a);
    else if (a.head_dim == 128)
      launch_mode<T, 128>(context, a);
    else
      return false;
    return true;
  }
}

template bool attend_on_tensor_cores(const OpContext&, const AttentionArguments<float>&);
template bool attend_on_tensor_cores(const OpContext&, const AttentionArguments<__half>&);
template bool attend_on_tensor_cores(const OpContext&, const AttentionArguments<__nv_bfloat16>&);

}  // namespace lockstep
