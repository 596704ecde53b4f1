#pragma once

#include <cstring>
#include <memory>
#include <type_traits>

#include "src/faults/faults.h"

namespace lockstep {

// The seeding function of every fault; what each one does is said in the table in catalogue.cc.
void seed_rope_interleaved(const Seams& seams, const FaultRequest& request);
void seed_rope_position_off_by_one_in_decode(const Seams& seams, const FaultRequest& request);
void seed_qk_norm_missing(const Seams& seams, const FaultRequest& request);
void seed_qk_norm_over_16_wide_blocks(const Seams& seams, const FaultRequest& request);
void seed_rms_norm_eps(const Seams& seams, const FaultRequest& request);
void seed_gqa_map_modulo(const Seams& seams, const FaultRequest& request);
void seed_softmax_scale_missing(const Seams& seams, const FaultRequest& request);
void seed_causal_mask_off_by_one(const Seams& seams, const FaultRequest& request);
void seed_last_page_tail_unmasked(const Seams& seams, const FaultRequest& request);
void seed_moe_expert_order(const Seams& seams, const FaultRequest& request);
void seed_moe_router_not_normalised(const Seams& seams, const FaultRequest& request);
void seed_sliding_window_off_by_one(const Seams& seams, const FaultRequest& request);
void seed_chunk_lengths_of_another_row(const Seams& seams, const FaultRequest& request);
void seed_rope_theta_ignored(const Seams& seams, const FaultRequest& request);
void seed_yarn_factor_twice(const Seams& seams, const FaultRequest& request);
void seed_wrong_page(const Seams& seams, const FaultRequest& request);
void seed_page_table_stride(const Seams& seams, const FaultRequest& request);
void seed_slot_offset_32_bit(const Seams& seams, const FaultRequest& request);
void seed_token_cached_twice(const Seams& seams, const FaultRequest& request);
void seed_new_token_never_cached(const Seams& seams, const FaultRequest& request);
void seed_stale_prefix_page(const Seams& seams, const FaultRequest& request);
void seed_page_freed_too_early(const Seams& seams, const FaultRequest& request);
void seed_written_while_shared(const Seams& seams, const FaultRequest& request);
void seed_swap_restores_another_page(const Seams& seams, const FaultRequest& request);

void seed_qk_norm_after_rope(const Seams& seams, const FaultRequest& request);
void seed_qk_norm_gain_of_another_shard(const Seams& seams, const FaultRequest& request);
void seed_norm_gain_plus_one(const Seams& seams, const FaultRequest& request);
void seed_norm_mean_subtracted(const Seams& seams, const FaultRequest& request);
void seed_norm_eps_outside_root(const Seams& seams, const FaultRequest& request);
void seed_norm_16_bit_sum(const Seams& seams, const FaultRequest& request);
void seed_norm_gain_after_16_bit_cast(const Seams& seams, const FaultRequest& request);
void seed_rope_tables_16_bit(const Seams& seams, const FaultRequest& request);
void seed_rope_over_half_of_the_dims(const Seams& seams, const FaultRequest& request);
void seed_rope_positions_16_bit(const Seams& seams, const FaultRequest& request);
void seed_k_and_v_swapped(const Seams& seams, const FaultRequest& request);
void seed_causal_mask_top_left(const Seams& seams, const FaultRequest& request);
void seed_softmax_scale_of_another_head_dim(const Seams& seams, const FaultRequest& request);
void seed_softmax_scale_twice(const Seams& seams, const FaultRequest& request);
void seed_v_scale_of_another_head(const Seams& seams, const FaultRequest& request);
void seed_split_merge_log2_with_ln(const Seams& seams, const FaultRequest& request);
void seed_split_merge_max_missing(const Seams& seams, const FaultRequest& request);
void seed_split_partials_16_bit(const Seams& seams, const FaultRequest& request);
void seed_split_without_keys(const Seams& seams, const FaultRequest& request);
void seed_bias_dropped(const Seams& seams, const FaultRequest& request);
void seed_bias_twice(const Seams& seams, const FaultRequest& request);
void seed_projection_dead(const Seams& seams, const FaultRequest& request);
void seed_weight_layout_transposed(const Seams& seams, const FaultRequest& request);
void seed_weight_rows_shifted(const Seams& seams, const FaultRequest& request);
void seed_accumulator_16_bit(const Seams& seams, const FaultRequest& request);
void seed_one_element_off(const Seams& seams, const FaultRequest& request);
void seed_output_tile_never_written(const Seams& seams, const FaultRequest& request);
void seed_last_row_uses_row_before(const Seams& seams, const FaultRequest& request);
void seed_residual_missing(const Seams& seams, const FaultRequest& request);
void seed_residual_twice(const Seams& seams, const FaultRequest& request);
void seed_gate_and_up_swapped(const Seams& seams, const FaultRequest& request);
void seed_gelu_for_silu(const Seams& seams, const FaultRequest& request);
void seed_activation_overflows_fp16(const Seams& seams, const FaultRequest& request);
void seed_token_repeated(const Seams& seams, const FaultRequest& request);
void seed_embedding_of_next_id(const Seams& seams, const FaultRequest& request);
void seed_argmax_takes_runner_up(const Seams& seams, const FaultRequest& request);
void seed_logits_of_another_request(const Seams& seams, const FaultRequest& request);
void seed_head_is_stale(const Seams& seams, const FaultRequest& request);
void seed_graph_replays_stale_positions(const Seams& seams, const FaultRequest& request);
void seed_padded_row_writes_live_slot(const Seams& seams, const FaultRequest& request);
void seed_norm_without_barrier(const Seams& seams, const FaultRequest& request);
void seed_output_tile_uninitialised(const Seams& seams, const FaultRequest& request);
void seed_pool_offset_32_bit(const Seams& seams, const FaultRequest& request);

// Whether an op that runs now is in the layer to break.
inline bool hits(const FaultRequest& request, const OpContext& context) {
  return request.layer < 0 || request.layer == context.layer;
}

// Puts `wrong` in the place of an op in the layers of the request: wrong(inner, context, args...)
// with the op that was there before, which all other layers keep.
template <typename Signature, typename Wrong>
void inject(const Seams& seams, std::function<Signature> Ops::*op, const FaultRequest& request,
            Wrong wrong) {
  wrap(seams.ops.*op, [request, wrong = std::move(wrong)](
                          const auto& inner, const OpContext& context, const auto&... args) {
    if (!hits(request, context)) return inner(context, args...);
    wrong(inner, context, args...);
  });
}

// Has a hook do `more` after what it does already.
template <typename... Args>
void add_to(std::function<void(Args...)>& hook,
            std::type_identity_t<std::function<void(Args...)>> more) {
  hook = [inner = std::move(hook), more = std::move(more)](Args... args) {
    if (inner) inner(args...);
    more(args...);
  };
}

// The engine's description of the pass that it computes now, for ops, which are not told.
inline std::shared_ptr<const PassInfo> pass_of(const Seams& seams) {
  auto pass = std::make_shared<PassInfo>();
  add_to(seams.hooks.before_pass, [pass](Batch& batch) { *pass = batch.info; });
  return pass;
}

// A CPU tensor of its own, to be made wrong.
inline Tensor copy_of(const TensorView& right) {
  Tensor copy(right.shape, right.dtype);
  std::memcpy(copy.as<char>(), right.data, right.bytes());
  return copy;
}

// CPU elements of a float tensor, whatever its dtype. Faults are slow and plain on purpose.
inline float get(const TensorView& t, int64_t i) { return static_cast<float>(value_at(t, i)); }
inline void put(const TensorView& t, int64_t i, float value) {
  if (t.dtype == DType::bf16)
    t.as<BFloat16>()[i] = from_float<BFloat16>(value);
  else if (t.dtype == DType::f16)
    t.as<Float16>()[i] = from_float<Float16>(value);
  else
    t.as<float>()[i] = value;
}

// The number that is left of one that passes through bf16, whatever the dtype of the run.
inline float to_bf16(float x) { return to_float(from_float<BFloat16>(x)); }

}  // namespace lockstep
