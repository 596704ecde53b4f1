// Three warps beside those that compute: two or three add up products and hand on what comes of
// them, the third has the stream of a step of one request. What they do overlaps with the products.
#pragma once

#include "kernels/persistent/attention.cuh"
#include "kernels/persistent/cluster_stream.cuh"

namespace lockstep::persistent::clustered {

// The warp that has this block's columns of the stream of a step of one request.
class StreamKeeper {
 public:
  __device__ StreamKeeper(const ClusterStep& step, Shared<1>& shared, const Place& place)
      : a_(step.step), place_(place), stream_(step, shared, place, 0) {}

  __device__ void run() {
    stream_.begin();
    if (place_.attends) stream_.hand_on();
    const bool shows = place_.cluster == kShowsDown || place_.cluster == kShowsO;
#pragma unroll 1
    for (int layer = 0; layer < a_.layers; ++layer) {
      stream_.add_o(layer);
      stream_.hand_on();
      stream_.add_down(layer);
      // The others use the stream next after o.
      if (place_.attends || layer + 1 == a_.layers) stream_.hand_on();
      if (shows) raise_progress(a_, layer);
    }
  }

 private:
  const Step& a_;
  const Place& place_;
  StreamColumns<1> stream_;
};

// One of the warps that add up products over the warps.
template <bool kAttends, int kNumber, int kRequests>
class SumMaker {
  using Share = Sharing<kRequests>;

 public:
  __device__ SumMaker(const ClusterStep& step, Shared<kRequests>& shared, const Place& place)
      : a_(step.step), shared_(shared), place_(place), lane_(threadIdx.x % kWarp) {}

  __device__ void run() {
#pragma unroll 1
    for (int layer = 0; layer < a_.layers; ++layer) {
      const Layer& w = shared_.layers[layer];
      if constexpr (kAttends) {
        meet(kQkv, Share::kMeeting);
#pragma unroll 1
        for (int i = kNumber; i < 2 * kRequests; i += Share::kSumMakers)
          hand_on_qkv(w, i / 2, i % 2);
        if (Share::kByWarps || kNumber == 0) add_all_shares(w, layer);
        if (layer > 0) raise_layer(layer - 1);
      }
      meet(kGateUp, Share::kMeeting);
#pragma unroll 1
      for (int i = kNumber; i < kPairs * kRequests; i += Share::kSumMakers)
        hand_on_act(w, i / kRequests, i % kRequests);
      if (!kAttends && layer > 0) raise_layer(layer - 1);
    }
    meet(kLayersDone, Share::kByWarps ? Share::kMeeting : 2 * kWarp);
    raise_layer(a_.layers - 1);
    if constexpr (kNumber < 2) finish_head();
  }

 private:
  static constexpr int kUnits = kAttends ? kUnitsAttending : kUnitsOther;
  static constexpr int kPairs = (kUnits + 1) / 2;

  // One of them for all warps of the block: it has met them since they stored what they made of the
  // layer, and waits a while, since a word that is raised at once waits for stores on their way.
  __device__ void raise_layer(int layer) const {
    const bool for_stream =
        Share::kByWarps && (place_.cluster == kShowsDown || place_.cluster == kShowsO);
    if (kNumber == 1) raise_progress(a_, layer, for_stream ? 2 : 1);
  }

  // 32 of the block's rows of q, k, v to the team.
  __device__ void hand_on_qkv(const Layer& w, int request, int half) const {
    const int first = place_.member * kTeamRows + half * kWarp, row = first + lane_;
    const float sum = sum_of_warps(shared_.sums[request] + (half * kWarp + lane_) * kSumPitch);
    const uint32_t pair = pair_of_lanes(sum);
    const int piece = lane_ % 4;
    store_in(place_.team * kTeam + lane_ / 4,
             shared_address(shared_.qkv[request]) + first * 2 + piece * 16,
             words_of_lanes<2>(pair, 8 * piece), shared_address(&shared_.qkv_came));
    constexpr int kQ = kGroup * kDim;
    bf16* tap = row < kQ ? w.q_out : row < kQ + kDim ? w.k_out : w.v_out;
    const int at = row < kQ ? (request * kKvHeads + place_.kv_head) * kQ + row
                            : (request * kKvHeads + place_.kv_head) * kDim + row % kDim;
    if (tap != nullptr && lane_ % 2 == 0) *reinterpret_cast<uint32_t*>(tap + at) = pair;
  }

  // The team's shares of 32 elements of attention's output, which go to the cluster.
  __device__ void add_all_shares(const Layer& w, int layer) const {
    if (kNumber == 0) mark_time(a_, layer, Part::reduction, 0);
    await_phase(a_, shared_address(&shared_.shares_came), layer & 1, layer);
    if (kNumber == 0 && lane_ == 0)
      barrier_expect(shared_address(&shared_.shares_came),
                     kRequests * Share::kShares * kSharesBytes);
    if (kNumber == 0) mark_time(a_, layer, Part::reduction, 1);
#pragma unroll 1
    for (int r = kNumber; r < kRequests; r += Share::kSumMakers) add_shares(w, r);
    if (kNumber == 0) mark_time(a_, layer, Part::reduction, 2);
  }
  __device__ void add_shares(const Layer& w, int request) const {
    constexpr int kCount = kTeam * Share::kShares;
    static_assert(kCount <= kWarp);
    const auto& scales = shared_.scales[request];
    float most = -INFINITY, weight = 0, sum = 0;
    if constexpr (Share::kByWarps) {
      const bool is_one = lane_ < kCount;
      most = is_one ? scales[lane_][0] : -INFINITY;
      const float own = most;
      for (int o = 1; o < kWarp; o *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
      const float scale = own == -INFINITY ? 0 : exp_2(own - most);
      weight = warp_sum(is_one ? scale * scales[lane_][1] : 0);
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        sum = __fmaf_rn(__shfl_sync(~0u, scale, i), shared_.shares[request][i][lane_], sum);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) most = fmaxf(most, scales[i][0]);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float scale = exp_2(scales[i][0] - most);
        weight = __fmaf_rn(scale, scales[i][1], weight);
        sum = __fmaf_rn(scale, shared_.shares[request][i][lane_], sum);
      }
    }
    const uint32_t pair =
        pair_of_lanes(shared_.tiles_of(request).context == 0 ? 0 : __fdiv_rn(sum, weight));
    const int piece = lane_ % 4, first = (place_.team * kTeam + place_.member) * kShare;
    const uint4 words = words_of_lanes<2>(pair, 8 * piece);
    const uint32_t to = shared_address(shared_.attention[request]) + first * 2 + piece * 16;
    const uint32_t came = shared_address(&shared_.attention_came);
    store_in(lane_ / 4, to, words, came);
    store_in(lane_ / 4 + kTeam, to, words, came);
    if (w.attention_out != nullptr && lane_ % 2 == 0)
      *reinterpret_cast<uint32_t*>(w.attention_out +
                                   (request * kKvHeads + place_.kv_head) * kGroup * kDim +
                                   place_.member * kShare + lane_) = pair;
  }

  // Two tiles of eight rows of gate and eight of up; their act to the cluster.
  __device__ void hand_on_act(const Layer& w, int pair, int request) const {
    const float sum = sum_of_warps(shared_.sums[request] + (kWarp * pair + lane_) * kSumPitch);
    const float gate = widen(narrow<bf16>(sum)), up = __shfl_xor_sync(~0u, gate, kOctet);
    const float act = SiluMul()(gate, up);  // in lanes of gate
    const int half = lane_ / 16, unit = 2 * pair + half;
    const uint4 words = words_of_lanes<2>(pair_of_lanes(act), 16 * half);
    if (unit >= kUnits) return;
    const int first = (place_.rank * kUnits + unit) * kOctet;
    store_in(lane_ % 16, shared_address(shared_.act[request]) + first * 2, words,
             shared_address(&shared_.act_came));
    if (w.gate_out == nullptr || lane_ % 16 >= kOctet) return;
    const int at = request * kInner + first_act_of(place_.cluster) + first + lane_ % kOctet;
    w.gate_out[at] = narrow<bf16>(gate);
    w.up_out[at] = narrow<bf16>(up);
    w.act_out[at] = narrow<bf16>(act);
  }

  // Every second pair of the block's tiles of lm_head.
  __device__ void finish_head() {
    constexpr int kMeeting = kThreads + kWarp;
    const int pairs = (place_.head_tiles + 1) / 2;
    unsigned long long best[kRequests] = {};
#pragma unroll 1
    for (int i = kNumber; i < pairs; i += 2) {
      meet(kHead + kNumber, kMeeting);
      bf16 logits[kRequests];
#pragma unroll
      for (int r = 0; r < kRequests; ++r)
        logits[r] = narrow<bf16>(sum_of_warps(shared_.head_sums[kNumber][r] + lane_ * kSumPitch));
      if (i + 2 < pairs) pass_by(kHeadFree + kNumber, kMeeting);
      const int tile = 2 * i + lane_ / kTileRows;
      const int row = kTileRows * (tile * kBlocks + place_.block()) + lane_ % kTileRows;
      if (i >= 2) raise_progress(a_, a_.layers + i - 2);
      if (tile < place_.head_tiles) {
#pragma unroll
        for (int r = 0; r < kRequests; ++r) {
          a_.logits[int64_t{r} * a_.vocab + row] = logits[r];
          const unsigned long long key = key_of(widen(logits[r]), row);
          best[r] = key > best[r] ? key : best[r];
        }
      }
    }
    // The block's last pair is left, and columns of which it has none.
    for (int i = max((pairs - kNumber + 1) / 2 * 2 - 2, 0) + kNumber; i < columns_words(a_); i += 2)
      raise_progress(a_, a_.layers + i);
    __syncwarp();
#pragma unroll
    for (int r = 0; r < kRequests; ++r) {
      for (int o = kWarp / 2; o > 0; o /= 2) {
        const unsigned long long other = __shfl_xor_sync(~0u, best[r], o);
        best[r] = other > best[r] ? other : best[r];
      }
      if (lane_ == 0 && best[r] != 0) atomicMax(&a_.control->best[r], best[r]);
    }
  }

  const Step& a_;
  Shared<kRequests>& shared_;
  const Place& place_;
  const int lane_;
};

}  // namespace lockstep::persistent::clustered
