// This block's 64 columns of the stream of a request, as one warp has them: two a lane.
#pragma once

#include "kernels/persistent/cluster_products.cuh"

namespace lockstep::persistent::clustered {

template <int kRequests>
class StreamColumns {
 public:
  __device__ StreamColumns(const ClusterStep& step, Shared<kRequests>& shared, const Place& place,
                           int request)
      : c_(step),
        a_(step.step),
        shared_(shared),
        place_(place),
        request_(request),
        lane_(threadIdx.x % kWarp),
        column_(place.rank * kRows + 2 * lane_) {}

  // From the embedding.
  __device__ void begin() {
    int token = a_.tokens[request_];
    if (token < 0 || token >= a_.vocab) {
      if (lane_ == 0) report(a_.bad, BadIndex::Of::table_row, a_.vocab, token, request_);
      token = 0;
    }
    pair_ = *reinterpret_cast<const uint32_t*>(a_.embed + int64_t{token} * kHidden + column_);
    if (place_.cluster == kShowsDown) store(a_.embed_out, pair_);
  }

  // Adds what all clusters have of o, or of down, of a layer.
  __device__ void add_o(int layer) {
    const Layer& w = shared_.layers[layer];
    add<kAttending>(c_.o_sums, layer, place_.cluster == kShowsO, w.o_out, w.attn_residual_out);
  }
  __device__ void add_down(int layer) {
    const Layer& w = shared_.layers[layer];
    add<kClusters>(c_.down_sums, layer, place_.cluster == kShowsDown, w.down_out,
                   w.mlp_residual_out);
  }

  // To all blocks of the cluster: eight lanes each, and the sum of squares.
  __device__ void hand_on() const {
    const uint32_t came = shared_address(&shared_.stream_came);
    const int piece = lane_ % 8;
    const uint4 words = words_of_lanes<1>(pair_, 4 * piece);
    const uint32_t to =
        shared_address(shared_.stream[request_]) + place_.rank * kRows * 2 + piece * 16;
#pragma unroll
    for (int i = 0; i < kClusterBlocks / 4; ++i) store_in(lane_ / 8 + 4 * i, to, words, came);
    const float low = low_of(pair_), high = high_of(pair_);
    const float squares = warp_sum(low * low + high * high);
    if (lane_ < kClusterBlocks)
      store_in(lane_, shared_address(shared_.squares[request_] + place_.rank),
               __float_as_uint(squares), came);
  }

 private:
  __device__ void store(bf16* tap, uint32_t pair) const {
    if (tap != nullptr) *reinterpret_cast<uint32_t*>(tap + request_ * kHidden + column_) = pair;
  }
  template <int kCount>
  __device__ void add(const uint32_t* sums, int layer, bool shows, bf16* sum_out,
                      bf16* stream_out) {
    constexpr int kPitch = kRequests * kHidden;  // from cluster to cluster
    constexpr unsigned kPause = kRequests == 1 ? 400 : 200;
    const Turn turn = shared_.turn_of(layer);
    const uint32_t* from = sums + turn.buffer() * kCount * kPitch + request_ * kHidden + column_;
    const float2 sum = ClusterSums<kCount, kPitch, kPause>(a_, from, turn.bit(), layer).sum;
    const uint32_t branch = pack_pair<bf16>(sum.x, sum.y);
    pair_ = pack_pair<bf16>(__fadd_rn(low_of(pair_), low_of(branch)),
                            __fadd_rn(high_of(pair_), high_of(branch)));
    if (!shows) return;
    store(sum_out, branch);
    store(stream_out, pair_);
  }

  const ClusterStep& c_;
  const Step& a_;
  Shared<kRequests>& shared_;
  const Place& place_;
  const int request_, lane_, column_;
  uint32_t pair_ = 0;
};

}  // namespace lockstep::persistent::clustered
