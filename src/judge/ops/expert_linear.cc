// x W^T with the weight of each chosen expert: as linear, without a bias.
#include "src/judge/ops/errors.h"

namespace lockstep {
namespace {

using enum RoundingContract;

std::vector<RoundingContract> declared(const ContractTraits& traits) {
  if (traits.dtype == DType::f32) return {tf32, operands_bf16, operands_fp16};
  return {};
}

}  // namespace

const JudgedOp kJudgedExpertLinear = {.kind = OpKind::expert_linear,
                                      .declared = declared,
                                      .is_full = has_magnitude,
                                      .inner = each<inner_of_sum>,
                                      .reach = reach_of_sum,
                                      .gain = gain_of_sum,
                                      .truncates = true,
                                      .is_sum = true};

}  // namespace lockstep
