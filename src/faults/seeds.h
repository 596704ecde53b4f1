#pragma once

#include "src/faults/faults.h"

namespace lockstep {

// The seeding function of every fault; what each one does is said in the table in faults.cc.
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
void seed_wrong_page(const Seams& seams, const FaultRequest& request);

// Whether an op that runs now is the one to break.
inline bool hits(const FaultRequest& request, const OpContext& context) {
  return request.layer < 0 || request.layer == context.layer;
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

}  // namespace lockstep
