#include "kernels/plugin/foreign_call.h"

namespace lockstep {

DLDataType data_type_of(DType dtype) {
  const auto bits = static_cast<uint8_t>(8 * size_of(dtype));
  if (dtype == DType::bf16) return {kDLBfloat, bits, 1};
  if (is_float(dtype)) return {kDLFloat, bits, 1};
  return {static_cast<uint8_t>(dtype == DType::u8 ? kDLUInt : kDLInt), bits, 1};
}

}  // namespace lockstep
