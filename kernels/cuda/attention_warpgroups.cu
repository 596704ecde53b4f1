#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/warpgroup.cuh"

namespace lockstep {
namespace {

constexpr int kWorkers = 2;  // warpgroups of a block that work on rows; one more brings keys
constexpr int kRows = 64;    // of a worker
constexpr int kKeys = 64;    // that are brought and scored at a time
constexpr int kBlocks = kKeys / kBlockKeys;
static_assert(kBlocks == 2);
constexpr int kStages = 4;  // of as many keys and values in shared memory
constexpr int kThreads = (kWorkers + 1) * kWarpgroup;

template <typename T, int kDim>
struct Stage {
  Panels<T, kKeys, kDim> k, v;
};

// When a stage's keys or values are there, and when no thread of the workers needs them any more.
struct Handovers {
  Handover k, v, k_free, v_free;
};

template <typename T, int kDim>
struct Shared {
  Panels<T, kRows, kDim> q[kWorkers];
  Stage<T, kDim> stages[kStages];
  Panels<T, 16, kDim> zeros;
  Handovers handovers[kStages];
};

// Which stage it is, and the phase of its barriers.
struct Turn {
  int stage = 0;
  unsigned phase = 0;
  __device__ Turn next() const {
    return stage + 1 < kStages ? Turn{stage + 1, phase} : Turn{0, phase ^ 1};
  }
};

// Keys that all of these rows see.
template <typename T>
__device__ KeyRange seen_by_all(const AttentionArguments<T>& a, const Queries& queries,
                                int first_row, int count) {
  const int rows = queries.rows(a);
  if (first_row >= rows) return {0, 0};
  const int last_row = min(first_row + count, rows) - 1;
  return {seen_from(a, queries.position(queries.first + last_row / a.group)).begin,
          seen_from(a, queries.position(queries.first + first_row / a.group)).end};
}

// Brings keys and values, by one warpgroup.
template <typename T, int kDim>
__device__ void bring_all(const AttentionArguments<T>& a, Shared<T, kDim>& shared,
                          const Queries& queries, int kv_head, const KeyRange& keys) {
  using Bringer = Pieces<T, kDim, kWarpgroup>;
  // What is told of when two more are on their way.
  Handover *before = nullptr, *before_that = nullptr;
  const auto tell = [&](Handover* newest) {
    end_group();
    wait_for_older<2>();
    publish_writes();
    if (before_that != nullptr) before_that->arrive();
    before_that = before, before = newest;
  };
  const auto bring = [&](const Bringer& low, const Bringer& high, Panels<T, kKeys, kDim>& to,
                         const T* from) {
    low.bring_to([&](int row, int column) { return to.at(row, column); }, from);
    high.bring_to([&](int row, int column) { return to.at(kBlockKeys + row, column); }, from);
  };
  int at = keys.begin / kKeys * kKeys;
  const auto look = [&](int block) {
    return look_up(a, queries, kv_head, at + block * kBlockKeys, keys);
  };
  int64_t low = look(0), high = look(1);
  for (Turn turn; at < keys.end; turn = turn.next()) {
    Handovers& handovers = shared.handovers[turn.stage];
    const Bringer pieces[kBlocks] = {Bringer(low), Bringer(high)};
    handovers.k_free.wait(turn.phase ^ 1);
    bring(pieces[0], pieces[1], shared.stages[turn.stage].k, a.k);
    tell(&handovers.k);
    handovers.v_free.wait(turn.phase ^ 1);
    bring(pieces[0], pieces[1], shared.stages[turn.stage].v, a.v);
    tell(&handovers.v);
    at += kKeys;  // looked up before they are used: a page table lies as far away as the keys
    low = look(0), high = look(1);
  }
  tell(nullptr);
  tell(nullptr);
}

// What a warpgroup does for its rows. Scores of the next keys, and the sums of a block, are on
// their way while it makes weights of the scores of another block.
template <typename T, int kDim>
struct Worker {
  using Scores = float[kBlockKeys / 8][4];
  using Weights = uint32_t[kBlockKeys / 16][kParts<T>][4];

  const AttentionArguments<T>& a;
  Shared<T, kDim>& shared;
  int number;         // of the worker
  KeyRange any, all;  // keys that any of its rows sees, and that all of them see
  KeyRange brought;
  Tile<T, kDim> tile;      // the warp's: its sums are those of the warpgroup's products
  Softmax softmax[2];      // of all chunks
  float4 sums[kDim / 8];   // likewise
  Scores scores[kBlocks];  // of the keys of this turn
  Turn turn;
  bool fresh = true;  // the chunk has no sums yet

  __device__ void load_queries(const Queries& queries, int kv_head, int first_row);
  __device__ void take_all();

 private:
  __device__ void pass_by();
  __device__ void begin_scores(Turn of, bool there);
  __device__ void make_weights(Scores& p, int first, Weights& weights, float (&shrink)[2]);
  __device__ bool must_part_rows(int first, int block);
  __device__ void begin_sums(int first, int block, const Weights& weights,
                             const float (&shrink)[2]);
  __device__ void take_low(int at, bool first_turn);
  __device__ void take_high(int at, bool more);
  __device__ void end_chunk(const Softmax (&of)[2]);
};

template <typename T, int kDim>
__device__ void Worker<T, kDim>::load_queries(const Queries& queries, int kv_head, int first_row) {
  constexpr int kPieces = kDim / 8;
  const int rows = queries.rows(a), thread = static_cast<int>(threadIdx.x % kWarpgroup);
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
  publish_writes();
  any_of_warpgroup(1 + number, false);
}

// Products of q and the keys of a turn, or of anything that is there and will not be used.
template <typename T, int kDim>
__device__ void Worker<T, kDim>::begin_scores(Turn of, bool there) {
  using Keys = Panels<T, kKeys, kDim>;
  if (there) shared.handovers[of.stage].k.wait(of.phase);
  const uint64_t q = shared.q[number].descriptor(0),
                 k = there ? shared.stages[of.stage].k.descriptor(0) : q;
  settle(scores[0]), settle(scores[1]);
  begin_products();
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step)
    multiply_rows<T>(scores, q + Keys::step(step), k + Keys::step(step), step > 0);
  end_products();
}

// Of a block's scores, and what the sums before it shrink by.
template <typename T, int kDim>
__device__ void Worker<T, kDim>::make_weights(Scores& p, int first, Weights& weights,
                                              float (&shrink)[2]) {
  tile.scale_scores(a, first, first >= all.begin && first + kBlockKeys <= all.end, p);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float most = fmaxf(tile.softmax[half].most, tile.most_of(p, half));
    shrink[half] = tile.grow_total(half, most, tile.soften(p, half, most));
  }
#pragma unroll
  for (int step = 0; step < kBlockKeys / 16; ++step) split_scores<T, 2>(p, step, weights[step]);
}

// As Tile says it, of the rows of all warps: they work together.
template <typename T, int kDim>
__device__ bool Worker<T, kDim>::must_part_rows(int first, int block) {
  if (all.begin <= max(first, brought.begin) && all.end >= min(first + kBlockKeys, brought.end))
    return false;
  constexpr int kPieces = kDim / 8 / 4;  // of a row, for a warp
  const int lane = static_cast<int>(threadIdx.x % kWarp),
            warp = static_cast<int>(threadIdx.x / kWarp % 4);
  bool found = false;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const uint4 piece = *reinterpret_cast<const uint4*>(
        shared.stages[turn.stage].v.at(block * kBlockKeys + lane, (warp * kPieces + i) * 8));
    found |= not_finite<T>(piece.x) || not_finite<T>(piece.y) || not_finite<T>(piece.z) ||
             not_finite<T>(piece.w);
  }
  return any_of_warpgroup(1 + number, found);
}

template <typename T, int kDim>
__device__ void Worker<T, kDim>::begin_sums(int first, int block, const Weights& weights,
                                            const float (&shrink)[2]) {
  auto& values = shared.stages[turn.stage].v;
  if (!fresh) tile.grow_sums(0, shrink[0]), tile.grow_sums(1, shrink[1]);
  uint64_t v[kBlockKeys / 16];
#pragma unroll
  for (int step = 0; step < kBlockKeys / 16; ++step)
    v[step] = values.descriptor(block * kBlockKeys + step * 16);
  if (must_part_rows(first, block)) [[unlikely]] {
    if (fresh) tile.clear_sums();
    fresh = false;
#pragma unroll
    for (int step = 0; step < kBlockKeys / 16; ++step) {
      tile.weigh_row_by_row(
          [&](int key, int column) { return values.at(block * kBlockKeys + key, column); }, first,
          step, weights[step]);
      // Nothing is left to add. That is no branch around the products, because the compiler lets
      // products in branches run one by one.
      v[step] = shared.zeros.descriptor(0);
    }
  }
  settle(tile.sums);
  begin_products();
#pragma unroll
  for (int step = 0; step < kBlockKeys / 16; ++step)
#pragma unroll
    for (int part = 0; part < kParts<T>; ++part)
      multiply_columns<T>(tile.sums, weights[step][part], v[step], !fresh || step > 0 || part > 0);
  end_products();
  fresh = false;
}

// Adds the chunk whose sums the tile has to those before it.
template <typename T, int kDim>
__device__ void Worker<T, kDim>::end_chunk(const Softmax (&of)[2]) {
  const Softmax next[2] = {tile.softmax[0], tile.softmax[1]};
  tile.softmax[0] = of[0], tile.softmax[1] = of[1];
  tile.end_chunk();
  tile.join_to(softmax, [&](int n) -> float4& { return sums[n]; });
  tile.softmax[0] = next[0], tile.softmax[1] = next[1];
  fresh = true;
}

// Takes the first block of a turn while the sums of the last one of the turn before run.
template <typename T, int kDim>
__device__ void Worker<T, kDim>::take_low(int at, bool first_turn) {
  const Softmax before[2] = {tile.softmax[0], tile.softmax[1]};
  const bool next_chunk = !first_turn && at % kChunkKeys == 0;
  if (next_chunk) tile.softmax[0] = tile.softmax[1] = {};
  Weights weights;
  float shrink[2];
  make_weights(scores[0], at, weights, shrink);
  wait_for_products<0>();
  if (!first_turn) shared.handovers[(turn.stage + kStages - 1) % kStages].v_free.arrive();
  if (next_chunk) end_chunk(before);
  shared.handovers[turn.stage].v.wait(turn.phase);
  begin_sums(at, 0, weights, shrink);
}

// Takes the second one while the sums of the first one run; `more`: there is another turn.
template <typename T, int kDim>
__device__ void Worker<T, kDim>::take_high(int at, bool more) {
  Weights weights;
  float shrink[2];
  make_weights(scores[1], at + kBlockKeys, weights, shrink);
  begin_scores(turn.next(), more);
  wait_for_products<1>();
  begin_sums(at + kBlockKeys, 1, weights, shrink);
  wait_for_products<1>();
}

// A turn of which this worker sees nothing.
template <typename T, int kDim>
__device__ void Worker<T, kDim>::pass_by() {
  Handovers& handovers = shared.handovers[turn.stage];
  handovers.k.wait(turn.phase);
  handovers.k_free.arrive();
  handovers.v.wait(turn.phase);
  handovers.v_free.arrive();
  turn = turn.next();
}

template <typename T, int kDim>
__device__ void Worker<T, kDim>::take_all() {
  int at = brought.begin / kKeys * kKeys;
  for (; at < brought.end && at + kKeys <= any.begin; at += kKeys) pass_by();
  if (at < any.end) {
    begin_scores(turn, true);
    wait_for_products<0>();
    for (bool first = true; at < any.end; at += kKeys, first = false) {
      shared.handovers[turn.stage].k_free.arrive();
      take_low(at, first);
      take_high(at, at + kKeys < any.end);
      turn = turn.next();
    }
    wait_for_products<0>();
    shared.handovers[(turn.stage + kStages - 1) % kStages].v_free.arrive();
    end_chunk(tile.softmax);
  }
  for (; at < brought.end; at += kKeys) pass_by();
}

// A block takes kWorkers * kRows rows of one request and one K/V head. The longest contexts come
// first, of all heads: what begins last must not take long.
template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, 1) attend_warpgroups(AttentionArguments<T> a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<T, kDim>*>(memory);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kStages) {
    Handovers& handovers = shared.handovers[thread];
    handovers.k.begin(kWarpgroup), handovers.v.begin(kWarpgroup);
    handovers.k_free.begin(kWorkers * kWarpgroup), handovers.v_free.begin(kWorkers * kWarpgroup);
  }
  if (thread < 16 * kDim / 8)
    *reinterpret_cast<uint4*>(shared.zeros.at(thread % 16, thread / 16 * 8)) = {};
  publish_writes();
  __syncthreads();
  after_the_kernel_before();
  const int index = static_cast<int>(gridDim.x - 1 - blockIdx.x), kv_head = index % a.kv_heads;
  // From one lane, that the compiler knows that it is the same in all.
  const int number = __shfl_sync(~0u, thread / kWarpgroup, 0);
  if (blockIdx.x == 0 && thread < kWarp) look_at_batch(a);
  int run = index / a.kv_heads;
  const Queries queries = find_run(a, a.group, kWorkers * kRows, run);
  if (queries.request < 0) return;
  const int first_row = run * kWorkers * kRows;
  const KeyRange keys = seen_by(a, queries, first_row, kWorkers * kRows);
  if (number == kWorkers) {
    give_registers<40>();
    bring_all(a, shared, queries, kv_head, keys);
  } else {
    get_registers<232>();
    const int mine = first_row + number * kRows, tile_row = mine + thread / kWarp % 4 * kTileRows;
    Worker<T, kDim> worker = {
        a,   shared, number, seen_by(a, queries, mine, kRows), seen_by_all(a, queries, mine, kRows),
        keys};
    worker.load_queries(queries, kv_head, mine);
    worker.tile.begin(a, queries, kv_head, tile_row);
    worker.take_all();
    // Begun anew, that the registers for it are free until then.
    Tile<T, kDim> tile;
    tile.begin(a, queries, kv_head, tile_row);
    write_out(a, tile, worker.softmax, [&](int n) -> float4& { return worker.sums[n]; });
  }
}

template <typename T, int kDim>
void launch(const OpContext& context, const AttentionArguments<T>& a) {
  constexpr auto kBytes = static_cast<unsigned>(sizeof(Shared<T, kDim>));
  grant_shared<attend_warpgroups<T, kDim>>(kBytes);
  const auto blocks = static_cast<unsigned>(most_runs(a, kWorkers * kRows) * a.kv_heads);
  launch_early("paged_attention", context.stream, blocks, {kThreads, kBytes},
               attend_warpgroups<T, kDim>, a);
}

}  // namespace

template <typename T>
bool attend_by_warpgroups(const OpContext& context, const AttentionArguments<T>& a) {
  if constexpr (std::is_same_v<T, float>) {
    return false;
  } else {
    // Later devices lack these instructions too.
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
