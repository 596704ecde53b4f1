// Shapes, views and devices as values. A view never owns: it is valid as long as the tensor or file
// that it was taken from. Elements are widened to fp64 by widen(), in blocks, for whoever judges or
// converts.
#include "kernels/base/tensor.h"

#include <algorithm>
#include <charconv>

#include "kernels/base/check.h"

namespace lockstep {

std::string Device::text() const {
  if (kind == DeviceKind::cpu) return "cpu";
  return index == 0 ? "cuda" : "cuda:" + std::to_string(index);
}

Device device_from(const std::string& text) {
  if (text == "cpu") return Device::cpu;
  if (text == "cuda") return Device::cuda;
  int index = -1;
  const char* end = text.data() + text.size();
  if (text.starts_with("cuda:") && std::from_chars(text.data() + 5, end, index).ptr == end &&
      index >= 0)
    return {DeviceKind::cuda, index};
  fail("--device wants cpu, cuda or cuda:N, found \"{}\"", text);
}

Shape::Shape(std::initializer_list<int64_t> extents)
    : Shape(std::span<const int64_t>(extents.begin(), extents.size())) {}

Shape::Shape(std::span<const int64_t> extents) : rank_(static_cast<int>(extents.size())) {
  check(extents.size() <= extents_.size(), "a tensor has at most {} axes, found {}",
        extents_.size(), extents.size());
  std::copy(extents.begin(), extents.end(), extents_.begin());
}

int64_t Shape::count() const {
  int64_t n = 1;
  for (int64_t extent : extents()) n *= extent;
  return n;
}

std::string Shape::text() const {
  std::string out = "[";
  for (int axis = 0; axis < rank_; ++axis)
    out += (axis ? ", " : "") + std::to_string((*this)[axis]);
  return out + "]";
}

bool Shape::operator==(const Shape& other) const {
  return std::ranges::equal(extents(), other.extents());
}

TensorView TensorView::reshaped(const Shape& other) const {
  if (other.count() != count()) fail("shape {} cannot be seen as {}", shape.text(), other.text());
  TensorView view = *this;
  view.shape = other;
  return view;
}

TensorView TensorView::slice(int64_t first, int64_t n) const {
  if (first < 0 || n < 0 || first + n > rows())
    fail("rows {}..{} are outside a tensor {}", first, first + n, shape.text());
  std::array<int64_t, 5> extents{};
  std::ranges::copy(shape.extents(), extents.begin());
  extents[0] = n;
  TensorView view = *this;
  view.shape = Shape(std::span<const int64_t>(extents.data(), shape.rank()));
  view.data = static_cast<char*>(data) + first * row_size() * size_of(dtype);
  return view;
}

const TensorView& plain_codes(std::string_view reader, const WeightView& weight) {
  if (weight.kind != WeightView::Kind::plain || !weight.scales.empty())
    fail(
        "{}: the weight {} of {} has scales, and only plain weights are computed with: use a "
        "checkpoint that is not quantised",
        reader, weight.codes.shape.text(), name_of(weight.codes.dtype));
  return weight.codes;
}

double value_at(const TensorView& tensor, int64_t i) {
  double value = 0;
  widen(tensor, i, {&value, 1});
  return value;
}

std::vector<double> widened_row(const TensorView& tensor, int64_t row) {
  std::vector<double> values(tensor.row_size());
  widen(tensor, row * tensor.row_size(), values);
  return values;
}

void widen(const TensorView& tensor, int64_t first, std::span<double> out) {
  const auto copy = [&]<typename T>(const T* from) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(from[i]);
  };
  const auto copy_half = [&]<typename T>(const T* from) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = to_float(from[i]);
  };
  switch (tensor.dtype) {
    case DType::f64:
      return copy(tensor.as<const double>() + first);
    case DType::f32:
      return copy(tensor.as<const float>() + first);
    case DType::f16:
      return copy_half(tensor.as<const Float16>() + first);
    case DType::bf16:
      return copy_half(tensor.as<const BFloat16>() + first);
    case DType::i64:
      return copy(tensor.as<const int64_t>() + first);
    case DType::i32:
      return copy(tensor.as<const int32_t>() + first);
    case DType::u8:
      return copy(tensor.as<const uint8_t>() + first);
  }
}

}  // namespace lockstep
