// x W^T (+ b):  B = out + lambda sqrt(n) u S,  V = ulp^2/12 + (w(n) u S)^2. Under bias_after_store
// a kernel has the product to within lambda sqrt(n) u S before it is rounded, usually w(n) u S.
#include "src/judge/ops/errors.h"

namespace lockstep {
namespace {

using enum RoundingContract;

std::vector<RoundingContract> tried(const ContractTraits& traits) {
  if (traits.has_bias) return {fused, bias_after_store};
  return {fused};
}

std::vector<RoundingContract> declared(const ContractTraits& traits) {
  if (traits.dtype == DType::f32) return {tf32, operands_bf16, operands_fp16};
  return {};
}

}  // namespace

const JudgedOp kJudgedLinear = {.kind = OpKind::linear,
                                .tried = tried,
                                .declared = declared,
                                .is_full = has_magnitude,
                                .inner = each<inner_of_sum>,
                                .reach = reach_of_sum,
                                .gain = gain_of_sum,
                                .truncates = true,
                                .is_sum = true};

}  // namespace lockstep
