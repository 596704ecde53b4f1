// How the eight computing warps of a block wait, normalise the stream and hand sums to the other
// clusters.
#pragma once

#include "kernels/persistent/cluster_stream.cuh"

namespace lockstep::persistent::clustered {

// Read where it stands, not where it is used.
__device__ inline uint32_t load_pair_early(const bf16* from) {
  uint32_t pair;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(pair) : "l"(from));
  return pair;
}

// A head of q, or K, or V as one warp has it: a lane has the dims 2 lane and 2 lane + 1, and those
// 64 further.
struct HeadPairs {
  uint32_t low, high;
  __device__ void read(const uint32_t* from, int lane) {
    low = from[lane];
    high = from[lane + kWarp];
  }
  __device__ void store(bf16* to, int lane) const {
    if (to == nullptr) return;
    reinterpret_cast<uint32_t*>(to)[lane] = low;
    reinterpret_cast<uint32_t*>(to)[lane + kWarp] = high;
  }
  __device__ void normalise(const HeadPairs& gain, float eps) {
    const float x[4] = {low_of(low), high_of(low), low_of(high), high_of(high)};
    float squares = 0;
    for (const float e : x) squares = __fmaf_rn(e, e, squares);
    const float scale = norm_scale(warp_sum(squares), kDim, eps);
    low = normalised_pair(low, scale, gain.low);
    high = normalised_pair(high, scale, gain.high);
  }
  __device__ void rotate(const Rotation (&turn)[2]) {
    const float x[4] = {low_of(low), high_of(low), low_of(high), high_of(high)};
    low = pack_pair<bf16>(turn[0].low(x[0], x[2]), turn[1].low(x[1], x[3]));
    high = pack_pair<bf16>(turn[0].high(x[0], x[2]), turn[1].high(x[1], x[3]));
  }
  __device__ static uint32_t normalised_pair(uint32_t x, float scale, uint32_t gain) {
    return pack_pair<bf16>(__fmul_rn(__fmul_rn(low_of(x), scale), low_of(gain)),
                           __fmul_rn(__fmul_rn(high_of(x), scale), high_of(gain)));
  }
};

// The taps of a head of q or of K, or null.
struct HeadTaps {
  bf16 *normed, *roped;
};
__device__ inline bf16* shown(bool shows, bf16* tap, int at) {
  return shows && tap != nullptr ? tap + at : nullptr;
}

// The state of a computing warp, and what all its parts do.
template <int kRequests>
class Computing {
 protected:
  __device__ Computing(const ClusterStep& step, Shared<kRequests>& shared, const Place& place)
      : c_(step),
        a_(step.step),
        shared_(shared),
        place_(place),
        warp_(threadIdx.x / kWarp),
        lane_(threadIdx.x % kWarp),
        slots_(shared),
        stream_(step, shared, place, warp_ % kRequests) {}

  __device__ const Layer& layer() const { return shared_.layers[layer_]; }
  __device__ void mark(Part part, int mark) const {
    if (warp_ == 0) mark_time(a_, layer_, part, mark);
  }
  // Waits for what a barrier counts, which then counts the next layer's.
  __device__ void await(uint64_t& barrier, uint32_t parity, int bytes) const {
    await_phase(a_, shared_address(&barrier), parity, layer_);
    if (threadIdx.x == 0) barrier_expect(shared_address(&barrier), kRequests * bytes);
  }
  // The norm and the position of a head of q or of K.
  __device__ void finish(HeadPairs& head, const HeadPairs& gain, int request,
                         const HeadTaps& taps) const {
    head.normalise(gain, a_.eps);
    head.store(taps.normed, lane_);
    Rotation turn[2];
    for (int i = 0; i < 2; ++i) {
      const float2 angle = shared_.angles[request][2 * lane_ + i];
      turn[i].cos = angle.x, turn[i].sin = angle.y;
    }
    head.rotate(turn);
    head.store(taps.roped, lane_);
  }
  // K or V of this step's position into the cache.
  __device__ void append(int request, bool is_v, const HeadPairs& head) const {
    const int64_t slot = shared_.slots[request];
    if (slot < 0) return;
    bf16* cache = is_v ? layer().cache_v : layer().cache_k;
    head.store(cache + (slot * kKvHeads + place_.kv_head) * kDim, lane_);
  }
  __device__ int64_t sums_at(int buffers, int buffer) const {
    return (int64_t{buffer} * buffers + place_.cluster) * kRequests * kHidden;
  }
  // The products of this block's 64 rows of o or down, eight a warp, to all clusters.
  template <int kCount, int kPitch>
  __device__ void multiply_published(const Held<kCount>& held,
                                     const uint32_t (&input)[kRequests][kPitch], uint32_t* sums,
                                     uint32_t turn) const {
    const int row = place_.rank * kRows + warp_ * kOctet + lane_ / 4;
    constexpr int kTogether = kRequests < 4 ? kRequests : 4;
#pragma unroll
    for (int r = 0; r < kRequests; r += kTogether) {
      const float sum = multiply_rows<kCount, kTogether>(held, input[r], kPitch, lane_);
      if (lane_ % 4 < kTogether)
        store_word(sums + (r + lane_ % 4) * kHidden + row, in_turn(sum, turn));
    }
  }

  // Whether this warp has the stream of one of several requests, and adds to it before each norm.
  __device__ bool has_stream() const { return Sharing<kRequests>::kByWarps && warp_ < kRequests; }

  // The weights of this warp's part of a norm.
  struct Gain {
    uint32_t low, high;
    __device__ Gain(const bf16* weights, int warp, int lane)
        : low(load_pair_early(weights + warp * kDim + 2 * lane)),
          high(load_pair_early(weights + warp * kDim + 2 * (lane + kWarp))) {}
  };
  // The norm of the stream, of which a warp has 128 columns, as the operand of its products.
  __device__ void normalise(uint32_t (&input)[16], const Gain& gain, bf16* tap) {
    await(shared_.stream_came, stream_phase_, kStreamBytes);
    stream_phase_ ^= 1;
    // A lane has the scale of a request.
    const float scale = norm_scale(squares_of(lane_ % kRequests), kHidden, a_.eps);
#pragma unroll
    for (int r = 0; r < kRequests; ++r) normalise(r, __shfl_sync(~0u, scale, r), gain, tap);
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint4 four = {0, 0, 0, 0};
      if (lane_ < 4 * kRequests)
        four = *reinterpret_cast<const uint4*>(shared_.stream[lane_ / 4] + warp_ * (kDim / 2) +
                                               lane_ % 4 * 16 + 4 * k);
      input[4 * k] = four.x, input[4 * k + 1] = four.y;
      input[4 * k + 2] = four.z, input[4 * k + 3] = four.w;
    }
    __syncwarp();
  }

  __device__ float squares_of(int request) const {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kClusterBlocks; i += 4) {
      const float4 s = *reinterpret_cast<const float4*>(shared_.squares[request] + i);
      squares += (s.x + s.y) + (s.z + s.w);
    }
    return squares;
  }
  // The norm of one request's stream, in its place: a warp has its columns to itself.
  __device__ void normalise(int request, float scale, const Gain& gain, bf16* tap) {
    const int at = warp_ * (kDim / 2) + lane_;
    uint32_t* x = shared_.stream[request] + at;
    const uint32_t low = HeadPairs::normalised_pair(x[0], scale, gain.low);
    const uint32_t high = HeadPairs::normalised_pair(x[kWarp], scale, gain.high);
    x[0] = low, x[kWarp] = high;
    // Every block has all of it: of the first cluster that shows it, each shows a part.
    if (tap != nullptr && warp_ == place_.rank)
      HeadPairs{low, high}.store(tap + request * kHidden + warp_ * kDim, lane_);
  }

  const ClusterStep& c_;
  const Step& a_;
  Shared<kRequests>& shared_;
  const Place& place_;
  const int warp_, lane_;
  SlotReader<Shared<kRequests>::kSlots> slots_;
  StreamColumns<kRequests> stream_;
  int layer_ = 0;
  uint32_t stream_phase_ = 0, phase_ = 0;  // of what comes twice a layer, and once
};

}  // namespace lockstep::persistent::clustered
