// Ops that are exact by their inputs. Of gather and add B = out and V = ulp^2/12 say how far off a
// result is that is not what it must be, bit for bit; the others copy or compare and have no
// budget.
#include "src/judge/ops/errors.h"

namespace lockstep {
namespace {

JudgedOp::InnerError none(const Exact&, size_t, DType) { return {}; }

}  // namespace

const JudgedOp kJudgedGather = {
    .kind = OpKind::gather, .inner = each<none>, .gain = gain_of_sum, .is_calibrated = false};
const JudgedOp kJudgedAdd = {
    .kind = OpKind::add, .inner = each<none>, .gain = gain_of_sum, .is_calibrated = false};
const JudgedOp kJudgedCache = {.kind = OpKind::cache, .is_calibrated = false};
const JudgedOp kJudgedArgmax = {.kind = OpKind::argmax, .is_calibrated = false};
const JudgedOp kJudgedTopK = {.kind = OpKind::top_k, .is_calibrated = false};

}  // namespace lockstep
