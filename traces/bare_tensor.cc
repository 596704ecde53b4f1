// A tensor as another program stored it, brought into the form that a point has: the run's dtype,
// when each number is one of it, heads in an axis of their own, indices as int32. A number that
// would have to be rounded is an error that names it: a judge must see what the engine had.
#include "traces/bare_tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/base/check.h"
#include "traces/manifest.h"

namespace lockstep {
namespace {

bool is_half(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

// The first element that is no number of T; its count where all are.
// The sign of a zero counts too; NaNs are alike, as their bits need not survive.
template <typename T>
int64_t narrow(const TensorView& from, T* to) {
  const auto* values = from.as<const float>();
  for (int64_t i = 0; i < from.count(); ++i) {
    to[i] = from_float<T>(values[i]);
    const bool same = std::isnan(values[i]) || std::bit_cast<uint32_t>(to_float(to[i])) ==
                                                   std::bit_cast<uint32_t>(values[i]);
    if (!same) return i;
  }
  return from.count();
}

// fp32 numbers as those of a 16-bit dtype. Where they are none, `other` is the first such element.
Tensor narrowed(const Tensor& from, DType dtype, int64_t& other) {
  Tensor to(from.view().shape, dtype);
  other = dtype == DType::bf16 ? narrow(from, to.as<BFloat16>()) : narrow(from, to.as<Float16>());
  return to;
}

// fp16 numbers as fp32, or the tensor itself where it is fp32.
Tensor as_fp32(const Tensor& tensor) {
  const TensorView view = tensor.view();
  if (view.dtype == DType::f32) return tensor;
  Tensor wide(view.shape, DType::f32);
  for (int64_t i = 0; i < view.count(); ++i)
    wide.as<float>()[i] = to_float(view.as<const Float16>()[i]);
  return wide;
}

// Engines that compute batches have a first axis of one sequence.
Tensor without_leading_ones(const Tensor& tensor, const Point& point, const std::string& where) {
  const auto axes = std::ranges::count(point.shape, ',') + 1;
  const Shape& shape = tensor.view().shape;
  const std::span<const int64_t> extents = shape.extents();
  int64_t first = 0;
  while (std::ssize(extents) - first > axes && extents[first] == 1) ++first;
  check(std::ssize(extents) - first == axes, "{} has the shape {}, wanted axes of {}", where,
        shape.text(), point.shape);
  return first == 0 ? tensor : tensor.part(0, Shape(extents.subspan(first)), tensor.view().dtype);
}

// Indices of any width, as int32: what does not fit is an error, not another index.
Tensor indices(const Tensor& from, const std::string& where) {
  Tensor to(from.view().shape, DType::i32);
  const auto* values = from.as<const int64_t>();
  for (int64_t i = 0; i < from.view().count(); ++i) {
    check(std::in_range<int32_t>(values[i]), "{} has {}, which is no index", where, values[i]);
    to.as<int32_t>()[i] = static_cast<int32_t>(values[i]);
  }
  return to;
}

// The bits of 16-bit integers as numbers of a dtype.
Tensor from_bits(const Tensor& bits, DType dtype) { return bits.part(0, bits.view().shape, dtype); }

Tensor floats(const Hdf5File& file, const std::string& path, const Point& point,
              std::optional<DType> run, const std::string& where) {
  const Hdf5File::ForeignNumbers stored = file.numbers(path, /*whole=*/false);
  std::optional<DType> said;
  if (file.has(path, "dtype")) {
    said = meaning_of(file.text(path, "dtype"), where + ": dtype", dtype_from);
    check(is_half(*said) || *said == DType::f32,
          "{}: its dtype was wanted to be bf16, fp16 or "
          "fp32, found {}",
          where, name_of(*said));
  }
  if (stored.only_bits) {
    // The tensor's own word goes before the run's: an fp16 tensor may be in a bf16 run.
    const std::optional<DType> meant = said ? said : run;
    check(meant && is_half(*meant),
          "{} is uint16, and nothing says whether it holds bf16 or fp16: give it, or the file, an "
          "attribute dtype",
          where);
    return from_bits(stored.tensor, *meant);
  }
  const DType dtype = stored.tensor.view().dtype;
  check(!said || dtype == *said || dtype == DType::f32, "{} is {}, and its attribute dtype says {}",
        where, name_of(dtype), name_of(said.value_or(dtype)));
  const bool of_run = !said && run && point.dtype == PointDType::of_the_run && is_half(*run);
  // A program without bf16 may hold it in fp16, as far as the numbers go.
  const bool is_wider = dtype == DType::f32 || (dtype == DType::f16 && run == DType::bf16);
  if (!is_wider || !(of_run || (said && is_half(*said)))) return stored.tensor;
  int64_t other = 0;
  const Tensor wide = as_fp32(stored.tensor);
  Tensor half = narrowed(wide, said ? *said : *run, other);
  const int64_t count = stored.tensor.view().count();
  check(other == count || !said,
        "{} says that it is {}, and element {} is {}, which is none: it was not computed so, or "
        "not written exactly",
        where, said ? name_of(*said) : "", other,
        other < count ? wide.as<const float>()[other] : 0.0F);
  return other == count ? half : stored.tensor;  // fp32 logits of a 16-bit run
}

}  // namespace

Tensor bare_tensor(const Hdf5File& file, const std::string& path, const Point& point,
                   std::optional<DType> run) {
  const std::string where = file.path() + ": " + path;
  const Tensor tensor = point.dtype == PointDType::i32
                            ? indices(file.numbers(path, /*whole=*/true).tensor, where)
                            : floats(file, path, point, run, where);
  return without_leading_ones(tensor, point, where);
}

// One number of fp16 in eight is one of bf16 too, so that bf16 is tried first.
std::optional<DType> dtype_of_numbers(const Tensor& tensor) {
  constexpr int64_t kEnough = 64;
  const TensorView view = tensor.view();
  if (view.dtype != DType::f32 && view.dtype != DType::f16) return view.dtype;
  const Tensor wide = as_fp32(tensor);
  const auto tells = [](float x) { return x != 0 && std::isfinite(x); };
  const std::span values(wide.as<const float>(), static_cast<size_t>(view.count()));
  if (std::ranges::count_if(values, tells) < kEnough) {
    if (view.dtype == DType::f16) return view.dtype;
    return std::nullopt;
  }
  for (const DType half : {DType::bf16, DType::f16}) {
    int64_t other = 0;
    narrowed(wide, half, other);
    if (other == view.count()) return half;
  }
  return DType::f32;
}

}  // namespace lockstep
