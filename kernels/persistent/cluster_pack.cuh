// The order in which packed weights lie: a block's slots after each other as it streams them, a
// warp's eighth of a slot together, a lane's fragments as one product takes them.
#pragma once

#include "kernels/persistent/cluster_plan.cuh"

namespace lockstep::persistent::clustered {

// Where the 16 bytes of a lane come from: two rows of a tile, or 16 columns of one row and the
// next 16; four elements of each.
struct PackSource {
  const bf16 *first, *second;
};

class PackOrder {
 public:
  __device__ PackOrder(const Step& step, int warp, int lane)
      : a_(step), warp_(warp), row_(lane / 4), column_(lane % 4) {}

  // `fragment`: of the four of a slot.
  __device__ PackSource of(int64_t slot, int fragment) const {
    const int64_t head = first_slot(kBlocks, a_.layers);
    if (slot >= head) {
      const int64_t within = slot - head, tile = within / 2;
      return columns(a_.lm_head + tile * kTileRows * kHidden, 4 * (within % 2) + fragment);
    }
    const int64_t others = first_slot(kAttending * kClusterBlocks, a_.layers);
    const bool attends = slot < others;
    const int of_layer = attends ? kAttendingSlots : kOtherSlots;
    const int64_t within = attends ? slot : slot - others, list = within / of_layer;
    const int block =
        static_cast<int>(list / a_.layers) + (attends ? 0 : kAttending * kClusterBlocks);
    const int index = static_cast<int>(within % of_layer);
    return of_layer_slot(a_.layer[list % a_.layers], block, index, fragment);
  }

 private:
  __device__ PackSource of_layer_slot(const Layer& w, int block, int index, int fragment) const {
    const int cluster = block / kClusterBlocks, rank = block % kClusterBlocks;
    const bool attends = cluster < kAttending;
    if (attends) {
      if (index < kQkvSlots) return qkv(w, cluster, rank, 4 * index + fragment);
      index -= kQkvSlots;
      if (index < kOSlots)
        return rows(w.o, kHeads * kDim, rank, cluster * 2 * kGroup * kDim, 4 * index + fragment);
      index -= kOSlots;
    }
    const int units = attends ? kUnitsAttending : kUnitsOther, first = first_act_of(cluster);
    if (index >= 2 * units)
      return rows(w.down, kInner, rank, first, 4 * (index - 2 * units) + fragment);
    // A tile is eight rows of gate and the same of up.
    const int step = 4 * index + fragment, tile = step / 8;
    const int64_t row = first + (rank * units + tile) * kOctet;
    return {columns(w.gate + row * kHidden, step % 8).first,
            columns(w.up + row * kHidden, step % 8).first};
  }

  __device__ PackSource qkv(const Layer& w, int cluster, int rank, int step) const {
    const int kv_head = 2 * cluster + rank / kTeam;
    const int row = rank % kTeam * kTeamRows + step / 8 * kTileRows;  // of the head's q, k, v
    constexpr int kQ = kGroup * kDim;
    const bf16* matrix =
        row < kQ ? w.q + int64_t{kv_head * kQ + row} * kHidden
                 : (row < kQ + kDim ? w.k : w.v) + int64_t{kv_head * kDim + row % kDim} * kHidden;
    return columns(matrix, step % 8);
  }
  // The source in a tile of 16 rows from `matrix` on: a warp has 128 columns, a lane 32 of them, a
  // step four of those.
  __device__ PackSource columns(const bf16* matrix, int step) const {
    const bf16* first = matrix + int64_t{row_} * kHidden + warp_ * kDim + column_ * 32 + step * 4;
    return {first, first + kOctet * kHidden};
  }
  // The source in the block's 64 rows of o or down: a warp has eight, a fragment 32 columns.
  __device__ PackSource rows(const bf16* matrix, int width, int rank, int first_column,
                             int fragment) const {
    const int64_t row = rank * kRows + warp_ * kOctet + row_;
    const bf16* first = matrix + row * width + first_column + fragment * 32 + column_ * 4;
    return {first, first + 16};
  }

  const Step& a_;
  const int warp_, row_, column_;
};

__global__ void pack_weights(const __grid_constant__ ClusterStep c, uint4* packed) {
  const int at = static_cast<int>(threadIdx.x);  // of the slot, in 16 bytes
  const int warp = at / (4 * kWarp), fragment = at / kWarp % 4;
  const PackSource from = PackOrder(c.step, warp, at % kWarp).of(int64_t{blockIdx.x}, fragment);
  const auto first = *reinterpret_cast<const uint2*>(from.first);
  const auto second = *reinterpret_cast<const uint2*>(from.second);
  packed[int64_t{blockIdx.x} * (kSlotBytes / 16) + at] = {first.x, second.x, first.y, second.y};
}

}  // namespace lockstep::persistent::clustered
