#include "kernels/plugin/foreign_call.h"

#include "kernels/plugin/user_ops.h"

namespace lockstep {
namespace {

// One a thread, for the ops of an engine are called by one.
thread_local double seconds_taken = 0;

}  // namespace

void add_user_op_seconds(double seconds) { seconds_taken += seconds; }
double user_op_seconds() { return seconds_taken; }
void forget_user_op_seconds() { seconds_taken = 0; }

DLDataType data_type_of(DType dtype) {
  const auto bits = static_cast<uint8_t>(8 * size_of(dtype));
  if (dtype == DType::bf16) return {kDLBfloat, bits, 1};
  if (is_float(dtype)) return {kDLFloat, bits, 1};
  return {static_cast<uint8_t>(dtype == DType::u8 ? kDLUInt : kDLInt), bits, 1};
}

}  // namespace lockstep
