// Each op checks its arguments at each call, so that the sentences, with shapes as text, are made
// only where there is trouble to tell: they cost as much as a launch.
#include "kernels/base/arguments.h"

namespace lockstep {
namespace {

std::string_view name_of(DeviceKind kind) {
  return kind == DeviceKind::cpu ? "CPU" : "CUDA device";
}

}  // namespace

void check_tensor(std::string_view op, std::string_view name, const TensorView& tensor, DType dtype,
                  const Shape& shape, DeviceKind device) {
  // The number of the device is not looked at: the tensors of an op lie on one device, which its
  // stream decides.
  const bool fits = tensor.dtype == dtype && tensor.shape == shape && tensor.device.kind == device;
  if (!fits)
    fail(
        "{}: {} is {} {} on the {}, not {} {} on the {}: pass one that agrees with the other "
        "arguments",
        op, name, name_of(tensor.dtype), tensor.shape.text(), name_of(tensor.device.kind),
        name_of(dtype), shape.text(), name_of(device));
  check(tensor.data != nullptr || tensor.count() == 0,
        "{}: {} has {} elements and no memory: allocate it first", op, name, tensor.count());
}

void check_storage(std::string_view op, DType dtype) {
  check(dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16,
        "{} computes in fp32, fp16 or bf16, found {}: convert its arguments", op, name_of(dtype));
}

void check_rank(std::string_view op, std::string_view name, const TensorView& tensor, int rank) {
  if (tensor.shape.rank() != rank)
    fail("{}: {} has the shape {}, not {} axes: reshape it", op, name, tensor.shape.text(), rank);
}

}  // namespace lockstep
