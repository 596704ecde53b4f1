// The products of a block: fragments of the weights from the ring to registers before the input is
// there, so that what is left to do then is little.
#pragma once

#include "kernels/persistent/cluster_plan.cuh"

namespace lockstep::persistent::clustered {

// The computing warps' place in the ring, in bytes: a slot's barrier lies 8 bytes after the last.
template <int kSlots>
struct SlotReader {
  uint32_t data, full, empty;
  uint32_t at = 0, phase = 0;
  static constexpr uint32_t kBytes = kSlots * kSlotBytes;

  template <typename Memory>
  __device__ explicit SlotReader(Memory& shared)
      : data(shared_address(shared.ring)),
        full(shared_address(shared.full)),
        empty(shared_address(shared.empty)) {}

  struct Ahead {
    uint32_t at, phase;
  };
  __device__ Ahead ahead(int slots) const {
    const uint32_t to = at + slots * kSlotBytes;
    return to >= kBytes ? Ahead{to - kBytes, phase ^ 1} : Ahead{to, phase};
  }
  __device__ void await(const Step& a, const Ahead& slot, int layer) const {
    await_phase(a, full + slot.at / (kSlotBytes / 8), slot.phase, layer);
  }
  __device__ void free(const Ahead& slot) const {
    barrier_arrive(empty + slot.at / (kSlotBytes / 8));
  }
  __device__ void advance(int slots) {
    const Ahead next = ahead(slots);
    at = next.at;
    phase = next.phase;
  }
};

// A warp's fragments of kCount slots: four a slot, 16 bytes a lane.
template <int kCount>
struct Held {
  uint4 fragment[4 * kCount];

  // Each lane waits for a slot of its own, since waits cost much.
  template <typename Reader>
  __device__ void take(const Step& a, Reader& reader, int warp, int lane, int layer) {
    const typename Reader::Ahead own = reader.ahead(lane < kCount ? lane : 0);
    if (lane < kCount) reader.await(a, own, layer);
    __syncwarp();
    uint32_t from = reader.data + reader.at + warp * (kSlotBytes / kWarps) + lane * 16;
    const uint32_t end = reader.data + Reader::kBytes;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) fragment[4 * i + j] = load_shared(from + 512 * j);
      from += kSlotBytes;
      if (from >= end) from -= Reader::kBytes;
    }
    __syncwarp();
    if (lane < kCount) reader.free(own);
    reader.advance(kCount);
  }
};

__device__ inline void multiply_add(float (&sum)[4], const uint4& rows, uint32_t first,
                                    uint32_t second) {
  const uint32_t a[4] = {rows.x, rows.y, rows.z, rows.w}, b[2] = {first, second};
  mma_m16n8k16<bf16>(sum, a, b);
}

// Tiles of 16 rows by all columns, of which this warp has 128: its share of the sums to
// sums[request][row][warp]. Requests are columns of the operand.
template <int kTiles, int kRequests, int kPitch>
__device__ void multiply_columns(const Held<2 * kTiles>& held, const uint32_t (&input)[16],
                                 float (&sums)[kRequests][kPitch], int warp, int lane) {
  float c[kTiles][4] = {};
#pragma unroll
  for (int step = 0; step < 8; ++step)
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
      multiply_add(c[m], held.fragment[8 * m + step], input[2 * step], input[2 * step + 1]);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int request = 2 * (lane % 4) + i;
    if (request >= kRequests) continue;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      float* to = sums[request] + (kTileRows * m + lane / 4) * kSumPitch + warp;
      to[0] = c[m][i];
      to[kOctet * kSumPitch] = c[m][2 + i];
    }
  }
}
// Over the warps.
__device__ inline float sum_of_warps(const float* sums) {
  const float4 x = *reinterpret_cast<const float4*>(sums);
  const float4 y = *reinterpret_cast<const float4*>(sums + 4);
  return ((x.x + x.y) + (x.z + x.w)) + ((y.x + y.y) + (y.z + y.w));
}

// Eight rows of this warp by 128 columns a slot; returns the sum of row lane / 4 for request
// lane % 4, of four requests at most. Of 32 columns a fragment has 16 as rows 0 to 7 of its tile,
// whose input is column 2 r of the operand for request r, and 16 as rows 8 to 15, whose input is
// the next one. Inputs of requests lie `pitch` words apart.
template <int kCount, int kRequests>
__device__ float multiply_rows(const Held<kCount>& held, const uint32_t* input, int pitch,
                               int lane) {
  float even[4] = {}, odd[4] = {};
  uint2 b[4 * kCount];
#pragma unroll
  for (int i = 0; i < 4 * kCount; ++i)
    b[i] = lane < 8 * kRequests
               ? *reinterpret_cast<const uint2*>(input + lane / 8 * pitch + 16 * i + 2 * (lane % 8))
               : uint2{0, 0};
#pragma unroll
  for (int i = 0; i < 4 * kCount; ++i)
    multiply_add(i % 2 == 0 ? even : odd, held.fragment[i], b[i].x, b[i].y);
  return (even[0] + odd[0]) + (even[3] + odd[3]);
}

}  // namespace lockstep::persistent::clustered
