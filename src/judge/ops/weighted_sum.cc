// The results of the chosen experts, with their weights: a sum as a linear op's.
#include "src/judge/ops/errors.h"

namespace lockstep {
namespace {

using enum RoundingContract;

std::vector<RoundingContract> tried(const ContractTraits&) { return {fused, hf, products_rounded}; }

}  // namespace

const JudgedOp kJudgedWeightedSum = {.kind = OpKind::weighted_sum,
                                     .tried = tried,
                                     .is_full = has_magnitude,
                                     .inner = each<inner_of_sum>,
                                     .reach = reach_of_sum,
                                     .gain = gain_of_sum,
                                     .truncates = true,
                                     .is_sum = true};

}  // namespace lockstep
