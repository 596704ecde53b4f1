#pragma once

#include <string_view>

#include "kernels/base/check.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// The checks that every op makes of its arguments, in one set of sentences, shared by the CPU ops
// and their twins.

// Throws Error unless `tensor` has that dtype and shape, lies on a device of that kind and has
// memory.
void check_tensor(std::string_view op, std::string_view name, const TensorView& tensor, DType dtype,
                  const Shape& shape, DeviceKind device = DeviceKind::cpu);
// Throws Error unless `dtype` is one that ops compute in: fp32, fp16, bf16.
void check_storage(std::string_view op, DType dtype);
// Throws Error unless `tensor` has `rank` axes.
void check_rank(std::string_view op, std::string_view name, const TensorView& tensor, int rank);

// Calls body with a null pointer of the element type of `dtype`: float, Float16 or BFloat16.
//   dispatch("add", x.dtype, [&]<typename T>(T*) { ... });
template <typename Body>
// The pointer tells the type and is never followed.
void dispatch(std::string_view op, DType dtype, Body&& body) {
  check_storage(op, dtype);
  if (dtype == DType::f32)
    body(static_cast<float*>(nullptr));
  else if (dtype == DType::f16)
    body(static_cast<Float16*>(nullptr));
  else
    body(static_cast<BFloat16*>(nullptr));
}

}  // namespace lockstep
