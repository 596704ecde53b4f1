#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/warpgroup.cuh"

// The grid is one-dimensional: q tiles of 128 rows times K/V heads. A block has three warpgroups
// around four stages of 64 keys in shared memory:
//
//   producer, warpgroup 2    waits for k_empty, v_empty    cp.async K, V -> stage    k_full, v_full
//   consumer 0, rows 0..63   waits for k_full, v_full      S = Q K^T (wgmma), P = exp(S - row_max),
//   consumer 1, rows 64..127                               O += P V (wgmma)          k_empty,
//   v_empty
//
// The producer gives registers away (40 each) and the consumers take them (232 each). A consumer
// overlaps the two: the next Q K^T, or the P V of a block of 32 keys, runs while it computes the
// softmax of another block.
namespace lockstep {
namespace {

constexpr int kConsumers = 2;  // warpgroups of a block that compute; one more loads
constexpr int kRows = 64;      // of a consumer
constexpr int kKeys = 64;      // of a stage
constexpr int kBlocks = kKeys / kBlockKeys;
static_assert(kBlocks == 2);
constexpr int kStages = 4;  // of keys and values in shared memory
constexpr int kThreads = (kConsumers + 1) * kWarpgroup;

template <typename T, int kDim>
struct Stage {
  SwizzledTile128B<T, kKeys, kDim> k, v;
};

// A stage's keys or values are complete (full), or no consumer reads them any more (empty).
struct StageBarriers {
  Mbarrier k_full, v_full, k_empty, v_empty;
};

template <typename T, int kDim>
struct Shared {
  SwizzledTile128B<T, kRows, kDim> q[kConsumers];
  Stage<T, kDim> stages[kStages];
  SwizzledTile128B<T, 16, kDim> zeros;
  StageBarriers barriers[kStages];
};

// The current stage, and the phase of its barriers.
struct PipelineState {
  int stage = 0;
  unsigned phase = 0;
  __device__ PipelineState next() const {
    return stage + 1 < kStages ? PipelineState{stage + 1, phase} : PipelineState{0, phase ^ 1};
  }
};

// The keys that all of these rows see.
template <typename T>
__device__ KeyRange visible_to_all(const AttentionArguments<T>& a, const Queries& queries,
                                   int first_row, int count) {
  const int rows = queries.rows(a);
  if (first_row >= rows) return {0, 0};
  const int last_row = min(first_row + count, rows) - 1;
  return {visible_keys(a, queries.position(queries.first + last_row / a.group)).begin,
          visible_keys(a, queries.position(queries.first + first_row / a.group)).end};
}

// The producer: one warpgroup loads all keys and values.
template <typename T, int kDim>
__device__ void produce(const AttentionArguments<T>& a, Shared<T, kDim>& shared,
                        const Queries& queries, int kv_head, const KeyRange& keys) {
  using Loader = KvTileLoader<T, kDim, kWarpgroup>;
  // The barriers of the last two groups of copies: each is completed when two more are in flight.
  Mbarrier *before = nullptr, *before_that = nullptr;
  const auto commit = [&](Mbarrier* newest) {
    cp_async_commit_group();
    cp_async_wait_group<2>();
    fence_proxy_async();
    if (before_that != nullptr) before_that->arrive();
    before_that = before, before = newest;
  };
  const auto load = [&](const Loader& low, const Loader& high, SwizzledTile128B<T, kKeys, kDim>& to,
                        const T* from) {
    low.load_to([&](int row, int column) { return to.at(row, column); }, from);
    high.load_to([&](int row, int column) { return to.at(kBlockKeys + row, column); }, from);
  };
  int at = keys.begin / kKeys * kKeys;
  const auto locate = [&](int block) {
    return locate_key(a, queries, kv_head, at + block * kBlockKeys, keys);
  };
  int64_t low = locate(0), high = locate(1);
  for (PipelineState state; at < keys.end; state = state.next()) {
    StageBarriers& barriers = shared.barriers[state.stage];
    const Loader loader[kBlocks] = {Loader(low), Loader(high)};
    barriers.k_empty.wait(state.phase ^ 1);
    load(loader[0], loader[1], shared.stages[state.stage].k, a.k);
    commit(&barriers.k_full);
    barriers.v_empty.wait(state.phase ^ 1);
    load(loader[0], loader[1], shared.stages[state.stage].v, a.v);
    commit(&barriers.v_full);
    at += kKeys;  // the lookup runs ahead, because a page table is as far away as the keys
    low = locate(0), high = locate(1);
  }
  commit(nullptr);
  commit(nullptr);
}

// A consumer: the rows of one warpgroup, and the state of its pipeline.
template <typename T, int kDim>
struct Consumer {
  using Scores = float[kBlockKeys / 8][4];
  using Probs = uint32_t[kBlockKeys / 16][kTerms<T>][4];

  const AttentionArguments<T>& a;
  Shared<T, kDim>& shared;
  int number;         // of the consumer
  KeyRange any, all;  // keys that any of its rows sees, and that all of them see
  KeyRange loaded;
  Tile<T, kDim> tile;      // the warp's; its acc are the sums of the warpgroup's products
  Softmax softmax[2];      // over all splits
  float4 acc[kDim / 8];    // likewise
  Scores scores[kBlocks];  // of the keys of this stage
  PipelineState state;
  bool fresh = true;  // the split has no sums yet

  __device__ void load_q(const Queries& queries, int kv_head, int first_row);
  __device__ void process_all_blocks();

 private:
  __device__ void skip_stage();
  __device__ void issue_qk(PipelineState of, bool there);
  __device__ void softmax_block(Scores& p, int first, Probs& probs, float (&correction)[2]);
  __device__ bool needs_row_masks(int first, int block);
  __device__ void issue_pv(int first, int block, const Probs& probs, const float (&correction)[2]);
  __device__ void process_low_block(int at, bool first_stage);
  __device__ void process_high_block(int at, bool more);
  __device__ void end_split(const Softmax (&of)[2]);
};

template <typename T, int kDim>
__device__ void Consumer<T, kDim>::load_q(const Queries& queries, int kv_head, int first_row) {
  constexpr int kPieces = kDim / 8;
  const int rows = queries.rows(a), thread = threadIdx.x % kWarpgroup;
#pragma unroll 4
  for (int i = thread; i < kRows * kPieces; i += kWarpgroup) {
    const int row = i / kPieces, column = i % kPieces * 8, mine = first_row + row;
    const int64_t token = queries.first + mine / a.group;
    uint4 piece = {};
    if (mine < rows)
      piece = *reinterpret_cast<const uint4*>(
          a.q + (token * a.heads + kv_head * a.group + mine % a.group) * kDim + column);
    *reinterpret_cast<uint4*>(shared.q[number].at(row, column)) = piece;
  }
  fence_proxy_async();
  warpgroup_any(1 + number, false);
}

// Issues Q K^T of a stage. Without a next stage (`there` is false) it multiplies q with itself,
// which nobody reads, so that the pipeline has no branch.
template <typename T, int kDim>
__device__ void Consumer<T, kDim>::issue_qk(PipelineState of, bool there) {
  using Keys = SwizzledTile128B<T, kKeys, kDim>;
  if (there) shared.barriers[of.stage].k_full.wait(of.phase);
  const uint64_t q = shared.q[number].descriptor(0),
                 k = there ? shared.stages[of.stage].k.descriptor(0) : q;
  pin_registers(scores[0]), pin_registers(scores[1]);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step)
    wgmma_ss<T>(scores, q + Keys::step(step), k + Keys::step(step), step > 0);
  wgmma_commit_group();
}

// Turns a block's scores into probabilities, and gives the correction factor of the sums before it.
template <typename T, int kDim>
__device__ void Consumer<T, kDim>::softmax_block(Scores& p, int first, Probs& probs,
                                                 float (&correction)[2]) {
  tile.scale_scores(a, first, first >= all.begin && first + kBlockKeys <= all.end, p);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float row_max = fmaxf(tile.softmax[half].row_max, tile.block_row_max(p, half));
    correction[half] = tile.rescale_row_sum(half, row_max, tile.exp_scores(p, half, row_max));
  }
#pragma unroll
  for (int step = 0; step < kBlockKeys / 16; ++step) split_scores<T, 2>(p, step, probs[step]);
}

// Tile::needs_row_masks for the rows of all warps, which share the work.
template <typename T, int kDim>
__device__ bool Consumer<T, kDim>::needs_row_masks(int first, int block) {
  if (all.begin <= max(first, loaded.begin) && all.end >= min(first + kBlockKeys, loaded.end))
    return false;
  constexpr int kPieces = kDim / 8 / 4;  // of a row, for a warp
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % 4;
  bool found = false;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const uint4 piece = *reinterpret_cast<const uint4*>(
        shared.stages[state.stage].v.at(block * kBlockKeys + lane, (warp * kPieces + i) * 8));
    found |= not_finite<T>(piece.x) || not_finite<T>(piece.y) || not_finite<T>(piece.z) ||
             not_finite<T>(piece.w);
  }
  return warpgroup_any(1 + number, found);
}

template <typename T, int kDim>
__device__ void Consumer<T, kDim>::issue_pv(int first, int block, const Probs& probs,
                                            const float (&correction)[2]) {
  auto& values = shared.stages[state.stage].v;
  if (!fresh) tile.rescale_acc(0, correction[0]), tile.rescale_acc(1, correction[1]);
  uint64_t v[kBlockKeys / 16];
#pragma unroll
  for (int step = 0; step < kBlockKeys / 16; ++step)
    v[step] = values.descriptor(block * kBlockKeys + step * 16);
  if (needs_row_masks(first, block)) [[unlikely]] {
    if (fresh) tile.clear_acc();
    fresh = false;
#pragma unroll
    for (int step = 0; step < kBlockKeys / 16; ++step) {
      tile.accumulate_pv_row_by_row(
          [&](int key, int column) { return values.at(block * kBlockKeys + key, column); }, first,
          step, probs[step]);
      // Nothing is left to add, so the product is with zeros. A branch around the products is no
      // alternative, because the compiler serialises products in branches.
      v[step] = shared.zeros.descriptor(0);
    }
  }
  pin_registers(tile.acc);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kBlockKeys / 16; ++step)
#pragma unroll
    for (int term = 0; term < kTerms<T>; ++term)
      wgmma_rs<T>(tile.acc, probs[step][term], v[step], !fresh || step > 0 || term > 0);
  wgmma_commit_group();
  fresh = false;
}

// Merges the split whose sums the tile holds into those before it.
template <typename T, int kDim>
__device__ void Consumer<T, kDim>::end_split(const Softmax (&of)[2]) {
  const Softmax next[2] = {tile.softmax[0], tile.softmax[1]};
  tile.softmax[0] = of[0], tile.softmax[1] = of[1];
  tile.end_split();
  tile.merge_into(softmax, [&](int n) -> float4& { return acc[n]; });
  tile.softmax[0] = next[0], tile.softmax[1] = next[1];
  fresh = true;
}

// Processes the first block of a stage while the P V of the stage before runs.
template <typename T, int kDim>
__device__ void Consumer<T, kDim>::process_low_block(int at, bool first_stage) {
  const Softmax before[2] = {tile.softmax[0], tile.softmax[1]};
  const bool next_split = !first_stage && at % kSplitKeys == 0;
  if (next_split) tile.softmax[0] = tile.softmax[1] = {};
  Probs probs;
  float correction[2];
  softmax_block(scores[0], at, probs, correction);
  wgmma_wait_group<0>();
  if (!first_stage) shared.barriers[(state.stage + kStages - 1) % kStages].v_empty.arrive();
  if (next_split) end_split(before);
  shared.barriers[state.stage].v_full.wait(state.phase);
  issue_pv(at, 0, probs, correction);
}

// Processes the second block while the P V of the first one runs; `more`: there is another stage.
template <typename T, int kDim>
__device__ void Consumer<T, kDim>::process_high_block(int at, bool more) {
  Probs probs;
  float correction[2];
  softmax_block(scores[1], at + kBlockKeys, probs, correction);
  issue_qk(state.next(), more);
  wgmma_wait_group<1>();
  issue_pv(at + kBlockKeys, 1, probs, correction);
  wgmma_wait_group<1>();
}

// Releases a stage of which no row of this consumer sees a key.
template <typename T, int kDim>
__device__ void Consumer<T, kDim>::skip_stage() {
  StageBarriers& barriers = shared.barriers[state.stage];
  barriers.k_full.wait(state.phase);
  barriers.k_empty.arrive();
  barriers.v_full.wait(state.phase);
  barriers.v_empty.arrive();
  state = state.next();
}

template <typename T, int kDim>
__device__ void Consumer<T, kDim>::process_all_blocks() {
  int at = loaded.begin / kKeys * kKeys;
  for (; at < loaded.end && at + kKeys <= any.begin; at += kKeys) skip_stage();
  if (at < any.end) {
    issue_qk(state, true);
    wgmma_wait_group<0>();
    for (bool first = true; at < any.end; at += kKeys, first = false) {
      shared.barriers[state.stage].k_empty.arrive();
      process_low_block(at, first);
      process_high_block(at, at + kKeys < any.end);
      state = state.next();
    }
    wgmma_wait_group<0>();
    shared.barriers[(state.stage + kStages - 1) % kStages].v_empty.arrive();
    end_split(tile.softmax);
  }
  for (; at < loaded.end; at += kKeys) skip_stage();
}

// A block takes kConsumers * kRows rows of one request and one K/V head. The longest contexts come
// first, for all heads, because what begins last must not take long.
template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, 1) attend_warpgroups(AttentionArguments<T> a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<T, kDim>*>(memory);
  const int thread = threadIdx.x;
  if (thread < kStages) {
    StageBarriers& barriers = shared.barriers[thread];
    barriers.k_full.init(kWarpgroup), barriers.v_full.init(kWarpgroup);
    barriers.k_empty.init(kConsumers * kWarpgroup), barriers.v_empty.init(kConsumers * kWarpgroup);
  }
  if (thread < 16 * kDim / 8)
    *reinterpret_cast<uint4*>(shared.zeros.at(thread % 16, thread / 16 * 8)) = {};
  fence_proxy_async();
  __syncthreads();
  pdl_launch_dependents_and_wait();
  const int index = gridDim.x - 1 - blockIdx.x, kv_head = index % a.kv_heads;
  // The shuffle tells the compiler that the number is the same in all lanes.
  const int number = __shfl_sync(~0u, thread / kWarpgroup, 0);
  if (blockIdx.x == 0 && thread < kWarp) check_batch(a);
  int q_tile = index / a.kv_heads;
  const Queries queries = locate_q_tile(a, a.group, kConsumers * kRows, q_tile);
  if (queries.request < 0) return;
  const int first_row = q_tile * kConsumers * kRows;
  const KeyRange keys = visible_to_any(a, queries, first_row, kConsumers * kRows);
  if (number == kConsumers) {
    setmaxnreg_dec<40>();
    produce(a, shared, queries, kv_head, keys);
  } else {
    setmaxnreg_inc<232>();
    const int mine = first_row + number * kRows, tile_row = mine + thread / kWarp % 4 * kTileRows;
    Consumer<T, kDim> consumer = {a,
                                  shared,
                                  number,
                                  visible_to_any(a, queries, mine, kRows),
                                  visible_to_all(a, queries, mine, kRows),
                                  keys};
    consumer.load_q(queries, kv_head, mine);
    consumer.tile.begin(a, queries, kv_head, tile_row);
    consumer.process_all_blocks();
    // The tile is made again here, so that its registers are free until now.
    Tile<T, kDim> tile;
    tile.begin(a, queries, kv_head, tile_row);
    write_out(a, tile, consumer.softmax, [&](int n) -> float4& { return consumer.acc[n]; });
  }
}

template <typename T, int kDim>
void launch(const OpContext& context, const AttentionArguments<T>& a) {
  constexpr unsigned kBytes = sizeof(Shared<T, kDim>);
  grant_shared<attend_warpgroups<T, kDim>>(kBytes);
  const unsigned blocks = max_q_tiles(a, kConsumers * kRows) * a.kv_heads;
  launch_pdl("paged_attention", context.stream, blocks, {kThreads, kBytes},
             attend_warpgroups<T, kDim>, a);
}

}  // namespace

template <typename T>
bool attend_by_warpgroups(const OpContext& context, const AttentionArguments<T>& a) {
  if constexpr (std::is_same_v<T, float>) {
    return false;
  } else {
    // Later devices lack these instructions as well.
    if (compute_capability() != 90 || !aligned_16(0, a.out, a.q, a.k, a.v)) return false;
    if (a.head_dim == 64)
      launch<T, 64>(context, a);
    else if (a.head_dim == 128)
      launch<T, 128>(context, a);
    else
      return false;
    return true;
  }
}

template bool attend_by_warpgroups(const OpContext&, const AttentionArguments<float>&);
template bool attend_by_warpgroups(const OpContext&, const AttentionArguments<__half>&);
template bool attend_by_warpgroups(const OpContext&, const AttentionArguments<__nv_bfloat16>&);

}  // namespace lockstep
