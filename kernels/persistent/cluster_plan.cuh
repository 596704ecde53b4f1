// The decode step of up to eight rows, one of each request, by seven clusters of 16 blocks, each on
// a GPC of its own: tensor parallelism within a chip. A cluster that attends owns two KV heads, one
// by each team of eight blocks: their rows of q, k, v, their positions, their columns of o. Every
// cluster owns some of the MLP and has the whole stream, 64 columns a block. Only the sums of o and
// down cross clusters.
//
// Weights lie in the order of their use (cluster_pack.cuh): a block streams its own through a ring.
//
//   stream -> norm, q k v -> team: heads, append, attention by shares -> team: their sum
//     -> cluster: o -> all clusters: stream -> norm, gate, up -> cluster: down -> all clusters
//
// A buffer that other blocks store into holds one layer's numbers and is not guarded against those
// of the next: whoever sends them has received numbers that could not be made before all warps of
// all readers had read theirs. A block's part of the stream needs the sums of o or down of the same
// rows of every cluster, these need the whole cluster's attention or act, and those are made of
// products that each warp begins by reading what it waited for. The two buffers of sums that cross
// clusters take turns, since one cluster may be at the next layer's o when another has yet to read.
#pragma once

#include <cuda.h>

#include "kernels/decode_step.h"
#include "kernels/persistent/cluster.cuh"

namespace lockstep::persistent::clustered {

// Sizes of the model.
constexpr int kHidden = 1024, kHeads = 16, kKvHeads = 8, kDim = 128, kInner = 3072;
constexpr int kGroup = kHeads / kKvHeads, kHeadRows = (kGroup + 2) * kDim;  // of a KV head: q k v

constexpr int kClusters = 7, kClusterBlocks = 16, kBlocks = kClusters * kClusterBlocks;
constexpr int kTeam = kClusterBlocks / 2, kAttending = kKvHeads / 2;  // blocks, clusters
constexpr int kRows = kHidden / kClusterBlocks;  // of the stream, of o and down: a block's
constexpr int kTeamRows = kHeadRows / kTeam;     // of q, k, v: a block's
constexpr int kShare = kGroup * kDim / kTeam;    // of attention's output: a block's
constexpr int kUnit = kClusterBlocks * kOctet;   // of the MLP: eight a block
constexpr int kUnitsAttending = 3, kUnitsOther = 4, kMostUnits = 4;  // of a cluster
static_assert((kAttending * kUnitsAttending + (kClusters - kAttending) * kUnitsOther) * kUnit ==
              kInner);
static_assert(kHidden == kWarps * kDim && kRows == kWarps * kOctet && kShare == kWarp &&
              kTeamRows == 4 * kTileRows && kGroup == 2);

// Slots of the ring: two a tile of 16 rows by all columns, or 64 rows by 128 columns.
constexpr int kQkvSlots = 2 * kTeamRows / kTileRows;
constexpr int kOSlots = 2 * kGroup * kDim / 128;
constexpr int kAttendingSlots = kQkvSlots + kOSlots + 3 * kUnitsAttending;
constexpr int kOtherSlots = 3 * kUnitsOther;
constexpr int kLayerSlots =
    kClusterBlocks * (kAttending * kAttendingSlots + (kClusters - kAttending) * kOtherSlots);

constexpr int kHelpers = 4;  // warps: copies, the stream, two for sums; see Sharing
constexpr int kBlockThreads = kThreads + kHelpers * kWarp;
constexpr int kSumPitch = 12;  // of the sums of a row by warp: banks apart

constexpr int kMostClusterLayers = 48;  // whose arguments a launch takes
constexpr int kMostMultiprocessors = 160;
struct ClusterStep {
  Step step;
  // K and V of each layer as [pool][kv_heads][dim], of which a copy takes 16 rows of a head.
  CUtensorMap cache[kMostClusterLayers][2];
  const char* packed;
  uint32_t* o_sums;     // [2][kAttending][rows][kHidden]
  uint32_t* down_sums;  // [2][kClusters][rows][kHidden]
  // Which cluster the blocks on a multiprocessor play, or kNone: memory is read faster by some
  // GPCs than by others, and the hardware deals clusters out anew for each launch.
  static constexpr unsigned char kNone = 255;
  unsigned char role[kMostMultiprocessors];
};

// A request as a block sees it: the tiles of its positions that are this block's, which lie kTeam
// tiles apart.
struct Tiles {
  int context, count;
  int newest;    // the number of the newest of them
  int has_last;  // whether that one has the newest position

  __device__ Tiles(const Step& a, int row, int member, bool attends, int most) {
    context = min(context_of(a, row), most * kTeam * kTile);
    const int all = (context + kTile - 1) / kTile;
    count = attends && all > member ? (all - 1 - member) / kTeam + 1 : 0;
    newest = member + kTeam * (count - 1);
    has_last = count > 0 && newest == all - 1;
  }
};

// How the warps of a block share what they do for the requests. To one request all of them attend,
// and a helper has its stream. Of several, each has warps of its own, which are done at once, and
// one of these its stream; the helper adds up products instead.
template <int kRequests>
struct Sharing {
  static constexpr bool kByWarps = kRequests > 1;
  static constexpr int kAttendWarps = kByWarps ? kWarps / kRequests : kWarps;  // of a request
  static constexpr int kShares = kByWarps ? kAttendWarps : 1;  // of attention, from a block
  static constexpr int kSumMakers = kByWarps ? kHelpers - 1 : kHelpers - 2;
  static constexpr int kMeeting = kThreads + kSumMakers * kWarp;  // threads
};

// Which turn of a buffer of clusters' sums a layer is, over all launches, and which buffer.
struct Turn {
  uint32_t uses;
  __device__ int buffer() const { return static_cast<int>(uses & 1); }
  __device__ uint32_t bit() const { return (uses >> 1 & 1) ^ 1; }  // memory begins with zeros
};

// The shared memory of a block, of which others of the cluster store into some.
template <int kRequests>
struct Shared : Sharing<kRequests> {
  using Sharing<kRequests>::kByWarps, Sharing<kRequests>::kShares;
  static constexpr int kSlots = kRequests == 1 ? 12 : kRequests == 2 ? 11 : kRequests == 4 ? 10 : 8;
  static constexpr int kMostTiles = kRequests == 8 ? 128 : 256;  // of positions, of a block
  // Words from request to request, whose numbers are read at once: banks apart.
  static constexpr int kStreamPitch = kHidden / 2 + (kByWarps ? 8 : 0);
  static constexpr int kRowsPitch = kGroup * kDim + (kByWarps ? 16 : 0);
  static_assert(kGroup * kDim == kMostUnits * kUnit / 2);

  char ring[kSlots][kSlotBytes];
  union {
    float outputs[kByWarps ? 1 : kWarps][kGroup][kDim];  // of attention, by warp
    // Sums of products, by request, row and warp.
    float sums[kRequests][kMostUnits * kTileRows * kSumPitch];
    float head_sums[2][kRequests][2 * kTileRows * kSumPitch];
  };
  // Pairs of bf16. The cluster's: the whole stream, the output of its heads, its act; the team's:
  // the rows of its KV head. This block's own: q as attention reads it.
  uint32_t stream[kRequests][kStreamPitch];
  uint32_t qkv[kRequests][kHeadRows / 2], q[kByWarps ? kWarps : 1][kGroup * kDim / 2];
  uint32_t act[kRequests][kRowsPitch], attention[kRequests][kRowsPitch];
  alignas(16) float shares[kRequests][kTeam * kShares][kShare];  // of attention, from the team
  alignas(16) float scales[kRequests][kTeam * kShares][2];       // their maxima and weights
  alignas(16) float squares[kRequests][kClusterBlocks];
  float2 angles[kRequests][kDim / 2];  // cosines and sines
  static constexpr int kOutputs = kByWarps ? 1 : kWarps;
  float most[kGroup][kOutputs], weight[kGroup][kOutputs];  // of attention, by warp
  Layer layers[kMostClusterLayers];
  alignas(16) char tile_memory[kRequests * sizeof(Tiles)];
  int64_t slots[kRequests];          // of the pool, that this step's position has, or -1
  int tiles[kRequests][kMostTiles];  // where they begin in the pool, or -1
  // Barriers: of the slots, and of what others store here.
  uint64_t full[kSlots], empty[kSlots];
  uint64_t stream_came, qkv_came, shares_came, attention_came, act_came;
  int role;        // as the multiprocessor that this block is on has it
  uint32_t epoch;  // layers of all launches before

  // Read where it stands: in a register it would be kept in local memory, and be late.
  __device__ Turn turn_of(int layer) const {
    return {*static_cast<const volatile uint32_t*>(&epoch) + layer};
  }
  __device__ Tiles& tiles_of(int request) { return reinterpret_cast<Tiles*>(tile_memory)[request]; }
};
static_assert(sizeof(Shared<1>) <= 232448 && sizeof(Shared<2>) <= 232448 &&
              sizeof(Shared<4>) <= 232448 && sizeof(Shared<8>) <= 232448);

// Bytes of a request that come in a turn of each barrier.
constexpr int kStreamBytes = kHidden * 2 + kClusterBlocks * 4;
constexpr int kQkvBytes = kHeadRows * 2;
constexpr int kSharesBytes = kTeam * (kShare * 4 + 8);  // for one share of a block
constexpr int kAttentionBytes = 2 * kGroup * kDim * 2;
constexpr int kUnitBytes = kUnit * 2;  // of act

// Taps of what all clusters compute are one cluster's.
constexpr int kShowsDown = kAttending, kShowsO = kAttending + 1;

// Named barriers of a block.
constexpr int kAll = 1, kQkv = 2, kGateUp = 3, kHead = 4, kHeadFree = 6, kLayersDone = 8;

// The first column of the MLP that is a cluster's.
__device__ inline int first_act_of(int cluster) {
  const int attending = min(cluster, kAttending);
  return (attending * kUnitsAttending + (cluster - attending) * kUnitsOther) * kUnit;
}

// The place of a block in the step, as each of its threads knows it.
struct Place {
  int cluster, rank, team, member, kv_head;  // member of the team
  int head_tiles;                            // of lm_head
  bool attends;

  __device__ Place(const Step& a, int cluster_number) : cluster(cluster_number) {
    rank = static_cast<int>(blockIdx.x) % kClusterBlocks;
    team = rank / kTeam;
    member = rank % kTeam;
    kv_head = 2 * cluster + team;
    attends = cluster < kAttending;
    head_tiles = (a.vocab / kTileRows - block() + kBlocks - 1) / kBlocks;
  }
  __device__ int block() const { return cluster * kClusterBlocks + rank; }
  __device__ int units() const { return attends ? kUnitsAttending : kUnitsOther; }
};

// The slots of a block's weights in `packed`: those of its layers after each other; then lm_head's.
__host__ __device__ inline int64_t first_slot(int block, int layers) {
  constexpr int kFirst = kAttending * kClusterBlocks;
  return int64_t{layers} * (block < kFirst
                                ? block * kAttendingSlots
                                : kFirst * kAttendingSlots + (block - kFirst) * kOtherSlots);
}

// The words of the progress that columns of the logits have.
__device__ inline int columns_words(const Step& a) {
  constexpr int kColumns = DecodeProgress::kColumns;
  return (a.vocab + kColumns - 1) / kColumns;
}
// By a warp whose taps of a layer, or of some columns of the logits, are stored, and those of the
// warps that it met since: says so to who reads them meanwhile.
__device__ inline void raise_progress(const Step& a, int word, int by = 1) {
  if (a.progress == nullptr) return;
  __syncwarp();
  if (threadIdx.x % kWarp == 0)
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(a.progress + word), "r"(by)
                 : "memory");
}
// A warp in each block raises the word of a layer, and those with the stream in two clusters, or it
// for them; one in each block that of a pair of tiles.
static_assert(DecodeProgress::kOfLayer == kBlocks + 2 * kClusterBlocks &&
              DecodeProgress::kOfColumns == kBlocks &&
              DecodeProgress::kColumns == 2 * kTileRows * kBlocks);

__device__ inline void mark_time(const Step& a, int layer, Part part, int mark) {
  if (a.timeline == nullptr || threadIdx.x % kWarp != 0) return;
  const int64_t at = (int64_t{blockIdx.x} * a.layers + layer) * kParts + static_cast<int>(part);
  a.timeline[at * kMarks + mark] = nanoseconds();
}

}  // namespace lockstep::persistent::clustered
