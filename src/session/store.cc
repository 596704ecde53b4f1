#include "src/session/store.h"

namespace lockstep {

void store(const TensorView& out, int64_t i, double value) {
  const auto rounded = static_cast<float>(round_to(value, out.dtype));
  if (out.dtype == DType::bf16)
    out.as<BFloat16>()[i] = from_float<BFloat16>(rounded);
  else if (out.dtype == DType::f16)
    out.as<Float16>()[i] = from_float<Float16>(rounded);
  else
    out.as<float>()[i] = rounded;
}

}  // namespace lockstep
