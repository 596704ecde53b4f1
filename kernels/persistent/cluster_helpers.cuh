// Three warps beside those that compute: one has the stream, two add up products and hand on what
// comes of them. What they do overlaps with the products.
#pragma once

#include "kernels/persistent/attention.cuh"
#include "kernels/persistent/cluster_products.cuh"

namespace lockstep::persistent::clustered {

// The warp that has this block's 64 columns of the stream, two a lane.
class StreamKeeper {
 public:
  __device__ StreamKeeper(const ClusterStep& step, Shared& shared, const Place& place,
                          uint32_t epoch)
      : c_(step),
        a_(step.step),
        shared_(shared),
        place_(place),
        epoch_(epoch),
        lane_(threadIdx.x % kWarp),
        column_(place.rank * kRows + 2 * lane_) {}

  __device__ void run() {
    begin();
    if (place_.attends) hand_on();
#pragma unroll 1
    for (int layer = 0; layer < a_.layers; ++layer) {
      const Layer& w = shared_.layers[layer];
      const Turn turn = {epoch_ + layer};
      const uint32_t* o = c_.o_sums + turn.buffer() * kAttending * kHidden + column_;
      add(sum_of_clusters<kAttending>(a_, o, kHidden, turn.bit(), layer),
          place_.cluster == kAttending + 1, w.o_out, w.attn_residual_out);
      hand_on();
      const uint32_t* down = c_.down_sums + turn.buffer() * kClusters * kHidden + column_;
      add(sum_of_clusters<kClusters>(a_, down, kHidden, turn.bit(), layer),
          place_.cluster == kAttending, w.down_out, w.mlp_residual_out);
      // The others use the stream next after o.
      if (place_.attends || layer + 1 == a_.layers) hand_on();
    }
  }

 private:
  __device__ void begin() {
    int token = a_.tokens[0];
    if (token < 0 || token >= a_.vocab) {
      if (lane_ == 0) report(a_.bad, BadIndex::Of::table_row, a_.vocab, token, 0);
      token = 0;
    }
    set(*reinterpret_cast<const uint32_t*>(a_.embed + int64_t{token} * kHidden + column_));
    if (a_.embed_out != nullptr && place_.cluster == kAttending) store(a_.embed_out, stream_);
  }
  __device__ void set(uint32_t stream) {
    stream_ = stream;
    low_ = low_of(stream);
    high_ = high_of(stream);
  }
  __device__ void store(bf16* tap, uint32_t pair) const {
    if (tap != nullptr) *reinterpret_cast<uint32_t*>(tap + column_) = pair;
  }
  // Taps of what all clusters compute are one cluster's.
  __device__ void add(const float2& sum, bool shows, bf16* sum_out, bf16* stream_out) {
    const uint32_t branch = pack_pair<bf16>(sum.x, sum.y);
    set(pack_pair<bf16>(__fadd_rn(low_, low_of(branch)), __fadd_rn(high_, high_of(branch))));
    if (!shows) return;
    store(sum_out, branch);
    store(stream_out, stream_);
  }
  // To all blocks of the cluster: eight lanes each, and the sum of squares.
  __device__ void hand_on() const {
    const uint32_t came = shared_address(&shared_.stream_came);
    const int piece = lane_ % 8;
    const uint4 words = words_of_lanes<1>(stream_, 4 * piece);
    const uint32_t to = shared_address(shared_.stream) + place_.rank * kRows * 2 + piece * 16;
#pragma unroll
    for (int i = 0; i < kClusterBlocks / 4; ++i) store_in(lane_ / 8 + 4 * i, to, words, came);
    const float squares = warp_sum(low_ * low_ + high_ * high_);
    if (lane_ < kClusterBlocks)
      store_in(lane_, shared_address(shared_.squares + place_.rank), __float_as_uint(squares),
               came);
  }

  const ClusterStep& c_;
  const Step& a_;
  Shared& shared_;
  const Place& place_;
  const uint32_t epoch_;
  const int lane_, column_;
  uint32_t stream_ = 0;
  float low_ = 0, high_ = 0;
};

// One of the two warps that add up products over the warps.
template <bool kAttends, int kNumber>
class SumMaker {
 public:
  __device__ SumMaker(const ClusterStep& step, Shared& shared, const Place& place)
      : a_(step.step), shared_(shared), place_(place), lane_(threadIdx.x % kWarp) {}

  __device__ void run() {
#pragma unroll 1
    for (int layer = 0; layer < a_.layers; ++layer) {
      const Layer& w = shared_.layers[layer];
      if constexpr (kAttends) {
        meet(kQkv, kThreads + 2 * kWarp);
        hand_on_qkv(w);
        if (kNumber == 0) add_shares(w, layer);
      }
      meet(kGateUp, kThreads + 2 * kWarp);
#pragma unroll
      for (int pair = kNumber; 2 * pair < kUnits; pair += 2) hand_on_act(w, pair);
    }
    finish_head();
  }

 private:
  static constexpr int kUnits = kAttends ? kUnitsAttending : kUnitsOther;

  // This warp's 32 rows of q, k, v to the team.
  __device__ void hand_on_qkv(const Layer& w) const {
    const int first = place_.member * kTeamRows + kNumber * kWarp, row = first + lane_;
    const float sum = sum_of_warps(shared_.sums + (kNumber * kWarp + lane_) * kSumPitch);
    const uint32_t pair = pair_of_lanes(sum);
    const int piece = lane_ % 4;
    store_in(place_.team * kTeam + lane_ / 4, shared_address(shared_.qkv) + first * 2 + piece * 16,
             words_of_lanes<2>(pair, 8 * piece), shared_address(&shared_.qkv_came));
    constexpr int kQ = kGroup * kDim;
    bf16* tap = row < kQ ? w.q_out : row < kQ + kDim ? w.k_out : w.v_out;
    const int at = row < kQ ? place_.kv_head * kQ + row : place_.kv_head * kDim + row % kDim;
    if (tap != nullptr && lane_ % 2 == 0) *reinterpret_cast<uint32_t*>(tap + at) = pair;
  }

  // The team's shares of 32 elements of attention's output, which go to the cluster.
  __device__ void add_shares(const Layer& w, int layer) const {
    mark_time(a_, layer, Part::reduction, 0);
    await_phase(a_, shared_address(&shared_.shares_came), layer & 1, layer);
    if (lane_ == 0) barrier_expect(shared_address(&shared_.shares_came), kSharesBytes);
    mark_time(a_, layer, Part::reduction, 1);
    float most = -INFINITY, weight = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < kTeam; ++i) most = fmaxf(most, shared_.scales[i][0]);
#pragma unroll
    for (int i = 0; i < kTeam; ++i) {
      const float scale = exp_2(shared_.scales[i][0] - most);
      weight = __fmaf_rn(scale, shared_.scales[i][1], weight);
      sum = __fmaf_rn(scale, shared_.shares[i][lane_], sum);
    }
    const uint32_t pair = pair_of_lanes(place_.context == 0 ? 0 : __fdiv_rn(sum, weight));
    const int piece = lane_ % 4, first = (place_.team * kTeam + place_.member) * kShare;
    const uint4 words = words_of_lanes<2>(pair, 8 * piece);
    const uint32_t to = shared_address(shared_.attention) + first * 2 + piece * 16;
    const uint32_t came = shared_address(&shared_.attention_came);
    store_in(lane_ / 4, to, words, came);
    store_in(lane_ / 4 + kTeam, to, words, came);
    if (w.attention_out != nullptr && lane_ % 2 == 0)
      *reinterpret_cast<uint32_t*>(w.attention_out + place_.kv_head * kGroup * kDim +
                                   place_.member * kShare + lane_) = pair;
    mark_time(a_, layer, Part::reduction, 2);
  }

  // Two tiles of eight rows of gate and eight of up; their act to the cluster.
  __device__ void hand_on_act(const Layer& w, int pair) const {
    const float sum = sum_of_warps(shared_.sums + (kWarp * pair + lane_) * kSumPitch);
    const float gate = widen(narrow<bf16>(sum)), up = __shfl_xor_sync(~0u, gate, kOctet);
    const float act = SiluMul()(gate, up);  // in lanes of gate
    const int half = lane_ / 16, unit = 2 * pair + half;
    const uint4 words = words_of_lanes<2>(pair_of_lanes(act), 16 * half);
    if (unit >= kUnits) return;
    const int first = (place_.rank * kUnits + unit) * kOctet;
    store_in(lane_ % 16, shared_address(shared_.act) + first * 2, words,
             shared_address(&shared_.act_came));
    if (w.gate_out == nullptr || lane_ % 16 >= kOctet) return;
    const int at = first_act_of(place_.cluster) + first + lane_ % kOctet;
    w.gate_out[at] = narrow<bf16>(gate);
    w.up_out[at] = narrow<bf16>(up);
    w.act_out[at] = narrow<bf16>(act);
  }

  // Every second pair of the block's tiles of lm_head.
  __device__ void finish_head() {
    constexpr int kMeeting = kThreads + kWarp;
    const int pairs = (place_.head_tiles + 1) / 2;
    unsigned long long best = 0;
#pragma unroll 1
    for (int i = kNumber; i < pairs; i += 2) {
      meet(kHead + kNumber, kMeeting);
      const bf16 y = narrow<bf16>(sum_of_warps(shared_.head_sums[kNumber] + lane_ * kSumPitch));
      if (i + 2 < pairs) pass_by(kHeadFree + kNumber, kMeeting);
      const int tile = 2 * i + lane_ / kTileRows;
      const int row = kTileRows * (tile * kBlocks + place_.block()) + lane_ % kTileRows;
      if (tile >= place_.head_tiles) continue;
      a_.logits[row] = y;
      const unsigned long long key = key_of(widen(y), row);
      best = key > best ? key : best;
    }
    __syncwarp();
    for (int o = kWarp / 2; o > 0; o /= 2) {
      const unsigned long long other = __shfl_xor_sync(~0u, best, o);
      best = other > best ? other : best;
    }
    if (lane_ == 0 && best != 0) atomicMax(&a_.control->best[0], best);
  }

  const Step& a_;
  Shared& shared_;
  const Place& place_;
  const int lane_;
};

}  // namespace lockstep::persistent::clustered
