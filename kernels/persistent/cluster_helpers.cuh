// Three warps beside those that compute: one has the stream, two add up products and hand on what
// comes of them. What they do overlaps with the products.
#pragma once

#include "kernels/persistent/attention.cuh"
#include "kernels/persistent/cluster_products.cuh"

namespace lockstep::persistent::clustered {

// The warp that has this block's 64 columns of the streams, two a lane.
template <int kRequests>
class StreamKeeper {
 public:
  __device__ StreamKeeper(const ClusterStep& step, Shared<kRequests>& shared, const Place& place,
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
      add<kAttending>(c_.o_sums, turn, layer, place_.cluster == kShowsO, w.o_out,
                      w.attn_residual_out);
      hand_on();
      add<kClusters>(c_.down_sums, turn, layer, place_.cluster == kShowsDown, w.down_out,
                     w.mlp_residual_out);
      // The others use the stream next after o.
      if (place_.attends || layer + 1 == a_.layers) hand_on();
      if (shows()) raise_progress(a_, layer);
    }
  }

 private:
  // Taps of what all clusters compute are one cluster's.
  static constexpr int kShowsDown = kAttending, kShowsO = kAttending + 1;
  __device__ bool shows() const {
    return place_.cluster == kShowsDown || place_.cluster == kShowsO;
  }
  __device__ void begin() {
#pragma unroll
    for (int r = 0; r < kRequests; ++r) {
      int token = a_.tokens[r];
      if (token < 0 || token >= a_.vocab) {
        if (lane_ == 0) report(a_.bad, BadIndex::Of::table_row, a_.vocab, token, r);
        token = 0;
      }
      stream_[r] =
          *reinterpret_cast<const uint32_t*>(a_.embed + int64_t{token} * kHidden + column_);
      if (place_.cluster == kShowsDown) store(a_.embed_out, r, stream_[r]);
    }
  }
  __device__ void store(bf16* tap, int request, uint32_t pair) const {
    if (tap != nullptr) *reinterpret_cast<uint32_t*>(tap + request * kHidden + column_) = pair;
  }
  // Adds what kCount clusters have.
  template <int kCount>
  __device__ void add(const uint32_t* sums, const Turn& turn, int layer, bool shows, bf16* sum_out,
                      bf16* stream_out) {
    constexpr int kPitch = kRequests * kHidden;  // from cluster to cluster
    const uint32_t* from = sums + turn.buffer() * kCount * kPitch + column_;
    constexpr int kTogether = kRequests == 1 ? 1 : 2;  // more take too many registers
#pragma unroll
    for (int first = 0; first < kRequests; first += kTogether) {
      const ClusterSums<kCount, kTogether> found(a_, from + first * kHidden, kPitch, kHidden,
                                                 turn.bit(), layer);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int r = first + i;
        const uint32_t branch = pack_pair<bf16>(found.sum[i].x, found.sum[i].y);
        stream_[r] = pack_pair<bf16>(__fadd_rn(low_of(stream_[r]), low_of(branch)),
                                     __fadd_rn(high_of(stream_[r]), high_of(branch)));
        if (!shows) continue;
        store(sum_out, r, branch);
        store(stream_out, r, stream_[r]);
      }
    }
  }
  // To all blocks of the cluster: eight lanes each, and the sum of squares.
  __device__ void hand_on() const {
    const uint32_t came = shared_address(&shared_.stream_came);
    const int piece = lane_ % 8;
#pragma unroll
    for (int r = 0; r < kRequests; ++r) {
      const uint4 words = words_of_lanes<1>(stream_[r], 4 * piece);
      const uint32_t to = shared_address(shared_.stream[r]) + place_.rank * kRows * 2 + piece * 16;
#pragma unroll
      for (int i = 0; i < kClusterBlocks / 4; ++i) store_in(lane_ / 8 + 4 * i, to, words, came);
      const float low = low_of(stream_[r]), high = high_of(stream_[r]);
      const float squares = warp_sum(low * low + high * high);
      if (lane_ < kClusterBlocks)
        store_in(lane_, shared_address(shared_.squares[r] + place_.rank), __float_as_uint(squares),
                 came);
    }
  }

  const ClusterStep& c_;
  const Step& a_;
  Shared<kRequests>& shared_;
  const Place& place_;
  const uint32_t epoch_;
  const int lane_, column_;
  uint32_t stream_[kRequests] = {};
};

// One of the two warps that add up products over the warps.
template <bool kAttends, int kNumber, int kRequests>
class SumMaker {
 public:
  __device__ SumMaker(const ClusterStep& step, Shared<kRequests>& shared, const Place& place)
      : a_(step.step), shared_(shared), place_(place), lane_(threadIdx.x % kWarp) {}

  __device__ void run() {
#pragma unroll 1
    for (int layer = 0; layer < a_.layers; ++layer) {
      const Layer& w = shared_.layers[layer];
      if constexpr (kAttends) {
        meet(kQkv, kThreads + 2 * kWarp);
#pragma unroll 1
        for (int r = 0; r < kRequests; ++r) hand_on_qkv(w, r);
        if (kNumber == 0) add_all_shares(w, layer);
        if (layer > 0) raise_layer(layer - 1);
      }
      meet(kGateUp, kThreads + 2 * kWarp);
#pragma unroll
      for (int pair = kNumber; 2 * pair < kUnits; pair += 2)
#pragma unroll 1
        for (int r = 0; r < kRequests; ++r) hand_on_act(w, pair, r);
      if (!kAttends && layer > 0) raise_layer(layer - 1);
    }
    meet(kLayersDone, 2 * kWarp);
    raise_layer(a_.layers - 1);
    finish_head();
  }

 private:
  static constexpr int kUnits = kAttends ? kUnitsAttending : kUnitsOther;

  // One of both for all warps of the block: it has met them since they stored what they made of the
  // layer, and waits a while, since a word that is raised at once waits for stores on their way.
  __device__ void raise_layer(int layer) const {
    if (kNumber == 1) raise_progress(a_, layer);
  }

  // The sum of row `row` of the block's tiles.
  __device__ static float sum_of(const float* sums, int row, int request) {
    return sum_of_warps(sums + (row * kRequests + request) * kSumPitch);
  }

  // This warp's 32 rows of q, k, v to the team.
  __device__ void hand_on_qkv(const Layer& w, int request) const {
    const int first = place_.member * kTeamRows + kNumber * kWarp, row = first + lane_;
    const float sum = sum_of(shared_.sums, kNumber * kWarp + lane_, request);
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
    mark_time(a_, layer, Part::reduction, 0);
    await_phase(a_, shared_address(&shared_.shares_came), layer & 1, layer);
    if (lane_ == 0) barrier_expect(shared_address(&shared_.shares_came), kRequests * kSharesBytes);
    mark_time(a_, layer, Part::reduction, 1);
#pragma unroll 1
    for (int r = 0; r < kRequests; ++r) add_shares(w, r);
    mark_time(a_, layer, Part::reduction, 2);
  }
  __device__ void add_shares(const Layer& w, int request) const {
    const auto& scales = shared_.scales[request];
    float most = -INFINITY, weight = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < kTeam; ++i) most = fmaxf(most, scales[i][0]);
#pragma unroll
    for (int i = 0; i < kTeam; ++i) {
      const float scale = exp_2(scales[i][0] - most);
      weight = __fmaf_rn(scale, scales[i][1], weight);
      sum = __fmaf_rn(scale, shared_.shares[request][i][lane_], sum);
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
    const float sum = sum_of(shared_.sums, kWarp * pair + lane_, request);
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
        logits[r] = narrow<bf16>(sum_of(shared_.head_sums[kNumber], lane_, r));
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
