#include "reference/widening.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <bit>
#include <cstdint>

#include "kernels/base/widest.h"

namespace lockstep {
namespace {

// A bf16 is the upper half of the fp32 of the same value.
template <typename T>
void widen(const uint16_t* from, int64_t count, T* to) {
  on_widest_vectors([&]() __attribute__((always_inline)) {
    for (int64_t i = 0; i < count; ++i)
      to[i] = std::bit_cast<float>(static_cast<uint32_t>(from[i]) << 16);
  });
}

}  // namespace

at::Tensor widened_bf16(const at::Tensor& x, DType to) {
  const auto type = to == DType::f32 ? at::kFloat : at::kDouble;
  const at::Tensor wide = at::empty(x.sizes(), x.options().dtype(type));
  const auto* const from = static_cast<const uint16_t*>(x.const_data_ptr());
  if (to == DType::f32)
    widen(from, x.numel(), wide.mutable_data_ptr<float>());
  else
    widen(from, x.numel(), wide.mutable_data_ptr<double>());
  return wide;
}

}  // namespace lockstep
