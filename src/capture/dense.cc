// Engines hand in views: slices of larger tensors, transposed heads, indices of 64 bits. A trace
// has dense tensors of five dtypes, so each is copied once, on the thread that shows it, and the
// caller may write over its memory when the call returns.
//
// A tensor on a device must be dense already: gathering strides there would need a kernel, and this
// library links no CUDA.
#include "src/capture/dense.h"

#include <dlpack/dlpack.h>

#include <cstring>
#include <limits>
#include <utility>

#include "kernels/base/check.h"
#include "src/capture/device_copy.h"

namespace lockstep {
namespace {

// The dtype of the copy before indices are narrowed.
DType dtype_of(const DLDataType& type, const std::string& what) {
  if (type.lanes == 1) {
    if (type.code == kDLBfloat && type.bits == 16) return DType::bf16;
    if (type.code == kDLFloat && type.bits == 16) return DType::f16;
    if (type.code == kDLFloat && type.bits == 32) return DType::f32;
    if (type.code == kDLInt && type.bits == 32) return DType::i32;
    if (type.code == kDLInt && type.bits == 64) return DType::i64;
  }
  fail(
      "{} has DLPack's type {} of {} bits, {} lanes: bfloat16, float16, float32, int32 or int64 "
      "was wanted",
      what, type.code, type.bits, type.lanes);
}

// Whether the elements follow one another in the order of the axes. DLPack has no strides where
// they do; the stride of an axis of one element means nothing.
bool is_dense(const DLTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t stride = 1;
  for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != stride) return false;
    stride *= tensor.shape[axis];
  }
  return true;
}

// Copies the elements from `axis` on, which begin at `from`, and returns where the next ones go.
char* copy_strided(const DLTensor& tensor, int axis, const char* from, size_t size, char* to) {
  if (axis == tensor.ndim) {
    std::memcpy(to, from, size);
    return to + size;
  }
  const int64_t step = tensor.strides[axis] * size;
  for (int64_t i = 0; i < tensor.shape[axis]; ++i)
    to = copy_strided(tensor, axis + 1, from + i * step, size, to);
  return to;
}

// Indices of 64 bits as those of 32 that points have: token ids and experts.
Tensor as_indices(const Tensor& from, const std::string& what) {
  Tensor to(from.view().shape, DType::i32);
  for (int64_t i = 0; i < from.view().count(); ++i) {
    const int64_t value = from.as<int64_t>()[i];
    check(std::in_range<int32_t>(value), "{} has {}, which is no index", what, value);
    to.as<int32_t>()[i] = static_cast<int32_t>(value);
  }
  return to;
}

}  // namespace

Tensor dense_copy(const DLTensor& tensor, void* stream, const std::string& what) {
  check(tensor.ndim >= 1 && tensor.ndim <= 5, "{} has {} axes, wanted 1 to 5", what, tensor.ndim);
  const DType dtype = dtype_of(tensor.dtype, what);
  const Shape shape(std::span<const int64_t>(tensor.shape, tensor.ndim));
  Tensor copy(shape, dtype);
  const char* from = static_cast<const char*>(tensor.data) + tensor.byte_offset;
  const bool on_host = tensor.device.device_type == kDLCPU ||
                       tensor.device.device_type == kDLCUDAHost ||
                       tensor.device.device_type == kDLCUDAManaged;
  check(on_host || tensor.device.device_type == kDLCUDA,
        "{} lies on a device of DLPack's type {}: the CPU or CUDA was wanted; copy it first", what,
        tensor.device.device_type);
  check(on_host || is_dense(tensor), "{} lies on a device and has gaps: make it contiguous", what);
  if (shape.count() == 0) return copy;
  const size_t size = size_of(dtype);
  if (!on_host)
    copy_from_device(copy.as<char>(), from, copy.view().bytes(), stream, what);
  else if (is_dense(tensor))
    std::memcpy(copy.as<char>(), from, copy.view().bytes());
  else
    copy_strided(tensor, 0, from, size, copy.as<char>());
  return dtype == DType::i64 ? as_indices(copy, what) : copy;
}

}  // namespace lockstep
