// The eight warps of a block that compute: the products of a layer, one after another.
#pragma once

#include <type_traits>

#include "kernels/persistent/cluster_heads.cuh"
#include "kernels/persistent/cluster_row_heads.cuh"

namespace lockstep::persistent::clustered {

template <int kRequests>
using Heads = std::conditional_t<kRequests == 1, HeadComputer, RowHeads<kRequests>>;

template <bool kAttends, int kRequests>
class ClusterComputer : Heads<kRequests> {
  using Base = Heads<kRequests>;
  using Base::a_, Base::c_, Base::shared_, Base::place_, Base::warp_, Base::lane_, Base::slots_;
  using Base::attend, Base::normalise, Base::multiply_published, Base::sums_at;
  using Base::has_stream, Base::stream_;
  using Base::layer_, Base::phase_, Base::layer, Base::mark, Base::await;
  using Gain = typename Base::Gain;

 public:
  __device__ ClusterComputer(const ClusterStep& step, Shared<kRequests>& shared, const Place& place)
      : Base(step, shared, place) {}

  __device__ void run() {
    if (has_stream()) stream_.begin();
    if (has_stream() && kAttends) stream_.hand_on();
#pragma unroll 1
    for (layer_ = 0; layer_ < a_.layers; ++layer_) {
      slots_.data = kept(slots_.data);
      if constexpr (kAttends) {
        multiply_qkv();
        attend();
        multiply_o();
      }
      multiply_mlp();
      phase_ ^= 1;
    }
    multiply_head();
  }

 private:
  static constexpr int kUnits = kAttends ? kUnitsAttending : kUnitsOther;

  __device__ void multiply_qkv() {
    mark(Part::qkv, 0);
    Held<kQkvSlots> held;
    uint32_t input[16];
    const Gain gain(layer().attn_norm, warp_, lane_);
    held.take(a_, slots_, warp_, lane_, layer_);
    if (has_stream() && layer_ > 0) {
      stream_.add_down(layer_ - 1);
      stream_.hand_on();
    }
    normalise(input, gain, place_.cluster == 0 ? layer().norm_out : nullptr);
    mark(Part::qkv, 1);
    multiply_columns<kQkvSlots / 2, kRequests>(held, input, shared_.sums, warp_, lane_);
    pass_by(kQkv, Sharing<kRequests>::kMeeting);
    mark(Part::qkv, 2);
  }

  __device__ void multiply_o() {
    mark(Part::o, 0);
    Held<kOSlots> held;
    held.take(a_, slots_, warp_, lane_, layer_);
    await(shared_.attention_came, phase_, kAttentionBytes);
    mark(Part::o, 1);
    const Turn turn = shared_.turn_of(layer_);
    multiply_published(held, shared_.attention, c_.o_sums + sums_at(kAttending, turn.buffer()),
                       turn.bit());
    mark(Part::o, 2);
  }

  __device__ void multiply_mlp() {
    mark(Part::gate_up, 0);
    {
      Held<2 * kUnits> held;
      uint32_t input[16];
      const Gain gain(layer().mlp_norm, warp_, lane_);
      if (!kAttends && has_stream() && layer_ > 0) stream_.add_down(layer_ - 1);
      held.take(a_, slots_, warp_, lane_, layer_);
      if (has_stream()) {
        stream_.add_o(layer_);
        stream_.hand_on();
      }
      normalise(input, gain, place_.cluster == kAttending ? layer().mlp_norm_out : nullptr);
      mark(Part::gate_up, 1);
      multiply_columns<kUnits, kRequests>(held, input, shared_.sums, warp_, lane_);
      pass_by(kGateUp, Sharing<kRequests>::kMeeting);
      mark(Part::gate_up, 2);
    }
    mark(Part::down, 0);
    Held<kUnits> held;
    held.take(a_, slots_, warp_, lane_, layer_);
    await(shared_.act_came, phase_, kUnits * kUnitBytes);
    mark(Part::down, 1);
    const Turn turn = shared_.turn_of(layer_);
    multiply_published(held, shared_.act, c_.down_sums + sums_at(kClusters, turn.buffer()),
                       turn.bit());
    mark(Part::down, 2);
  }

  // Two tiles of lm_head at a time, whose sums the helpers take in turns.
  __device__ void multiply_head() {
    uint32_t input[16];
    const Gain gain(a_.final_norm, warp_, lane_);
    if (has_stream()) {
      stream_.add_down(a_.layers - 1);
      stream_.hand_on();
    }
    if constexpr (Sharing<kRequests>::kByWarps) pass_by(kLayersDone, Sharing<kRequests>::kMeeting);
    normalise(input, gain, place_.block() < kClusterBlocks ? a_.final_norm_out : nullptr);
#pragma unroll 1
    for (int i = 0; 2 * i < place_.head_tiles; ++i) {
      auto& sums = shared_.head_sums[i % 2];
      constexpr int kMeeting = kThreads + kWarp;
      const auto await_sums = [&] {
        if (i > 1) meet(kHeadFree + i % 2, kMeeting);
      };
      if (2 * i + 1 < place_.head_tiles) {
        Held<4> held;
        held.take(a_, slots_, warp_, lane_, layer_);
        await_sums();
        multiply_columns<2, kRequests>(held, input, sums, warp_, lane_);
      } else {
        Held<2> held;
        held.take(a_, slots_, warp_, lane_, layer_);
        await_sums();
        multiply_columns<1, kRequests>(held, input, sums, warp_, lane_);
      }
      pass_by(kHead + i % 2, kMeeting);
    }
  }
};

}  // namespace lockstep::persistent::clustered
